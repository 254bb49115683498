// Loaded before the page is painted, so that a chosen theme does not flash. No module: those run too late.
(() => {
  const KEY = "easyscale-theme";
  const root = document.documentElement;
  function set(word) {
    if (word === "light" || word === "dark") root.dataset.theme = word;
    else delete root.dataset.theme;
  }
  function read() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // storage may be forbidden; then the theme is the system's
    }
  }
  set(read());
  window.easyscaleTheme = {
    dark: () =>
      root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches,
    choose(word) {
      set(word);
      try {
        localStorage.setItem(KEY, word);
      } catch {
        // it holds until the page is left
      }
    },
  };
})();
