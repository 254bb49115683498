"""What docs/evaluation.md says around its tables."""

# ruff: noqa: E501  a command is one line

INTRODUCTION = """# Policies on real traces

Simulated: what the scheduler's policies make of real traces, what published simulators say of the same, and what the
sources of our policies claim. Written by `benchmarks/evaluation_page.py` from `benchmarks/results/`; no figure is
typed in by hand. [Simulate a cluster](howto/simulate.md) says what the words mean, [Policies](policies.md) what each
policy does.

To have the figures again, with the public traces in a folder:

```
python benchmarks/evaluation.py --traces $TRACES                        # every policy, place and price of a switch
python benchmarks/evaluation.py --traces $TRACES --costs 1 --seeds 8 --only es,pollux-6 --policies easyscale,srtf,easyscale-heter,sia,afs
python benchmarks/evaluation.py --traces $TRACES --policies easyscale --again    # our policy alone, after a change
python benchmarks/evaluation_published.py --traces $TRACES              # against published simulators
python benchmarks/evaluation_claims.py --traces $TRACES                 # the claims of the sources
python benchmarks/evaluation_page.py                                    # this page
```
"""

AGAINST = """`best other`: for each place, the best of the eleven other policies for that figure, whichever it is: not one rival,
but the envelope of all. Ratios are its figure over ours, their geometric mean over the places; above 1, ours is
better. `held out`: the same over the places that had no part in choosing the policy; from 60 s on these are five of
Philly and ITP only. The policy minimises the average JCT. It does not minimise the makespan, and often is not the
best there.
"""

RESTS_ON = """- **Speeds.** Pollux: step times measured on T4s for each placement, the steps that the measured noise of the
  gradients asks for; the batch is cut anew for each number of devices, as in its artifact, so jobs may grow beyond
  what their users asked for. EasyScale: published seconds of a mini-batch by model and type of device; how they go
  with the batch is assumed, and there is no communication in them. **Philly and ITP know devices and seconds only.**
  How fast such a job is on fewer devices is assumed: as many ESTs as it had devices, 0.25 s a mini-batch, 100 MB of
  gradients reduced at 10 GB/s within a machine and a third of that between machines. All policies are given the same.
- **What policies know.** Speeds are known, not measured (`--measured` would change that). `srtf`, `afs`, `optimus`,
  `sidecar` and `easyscale` know how much work is left, `backfill` for its reservations; `tiresias`, `gavel`, `sia`
  and the published EasyScale policies do not. In a cluster, a script that says how many steps it will do makes that
  known; an estimate can be wrong, and that is not simulated here.
- **A switch** stops a job for the seconds named; so does a start. Devices change hands at once. Machines are not told
  apart here, except in the check against Pollux.
- **Slices.** Of Philly and ITP the first 400 jobs of a virtual cluster, on a cluster of our choice, small enough to
  be busy. What a job asks for beyond it is cut to what there is, for all policies.
- **Decisions.** Each policy decides as often as its source says: after each event (`fifo`, `backfill`, `srtf`, `afs`,
  `easyscale`), each minute (the others), each six minutes (`gavel`). On Philly and ITP, which last for weeks, those
  of the minute decide each ten minutes, to save hours of simulation. Where both were run (philly-ee9e8c and
  philly-6c71a0, a switch of 1 s) that moved JCT by -0.5% to +1.2%, except for the EasyScale pair on philly-6c71a0:
  +9%. The best other policy in JCT was the same with both.
"""

WEAK = """Weak points, so that nobody has to look for them:

- One number of `easyscale` (`power`, 0.5) was chosen with the places marked (t) in view, at a switch of 1 s. How a dear
  switch is weighed was chosen on es and all of Pollux 1 to 8 at 60 and 250 s: there, at these prices, none of them is
  held out, only Philly and ITP are, without their two places marked (t).
- On philly-103959 the cluster is hardly ever full: most policies are equal there.
- A trace is one sample. Pollux's eight and the seeds show spread; each slice of Philly and ITP is a single run.
- The policies of the sources are our own implementations, with the sources' options. Two of them and the EasyScale
  pair are checked against published figures below; the others are not. Where the source scales batches (Sia, Pollux),
  ours does not, because that changes what is trained.
- `sia` and `gavel` solve a program for each decision and were not run on Philly and ITP.
- No failures, no stragglers, no queue of the cluster's own (image pulls, quotas) are in these figures.
- Simulated jobs are not trained. What a switch costs in truth is in [Benchmarks](benchmarks.md).
"""

ORIGINS = """Origins: Philly: Jeon et al., ATC'19 (msr-fiddle/philly-traces, CC-BY-4.0). ITP: microsoft/elasticflow-traces (MIT),
with ElasticFlow, ASPLOS'23. Pollux workloads and profiles: Qiao et al., OSDI'21 (petuum/adaptdl, Apache-2.0).
EasyScale: Li et al., SC'23, its artifact's workload and step times. None of these files is part of this project.
"""

POLLUX_CHECK = """Pollux, workload 6 (160 jobs), with the assumptions of its artifact as options. A test holds both figures within 5%
(`tests/simulator/test_published.py`).

```
easyscale simulate --trace $TRACES/pollux-workloads/workload-6.csv --cluster t4:64 --nodes-of 4 --locality --restart-cost 30 --interval 60 --policy tiresias,optimus
```
"""

PUBLISHED_ES = """EasyScale's workload, with what its artifact assumes: of rows with one name the last alone counts (62 jobs), a
decision a minute, 20 s for the first start of a job and nothing for any later change, no communication, and the
artifact's two mistakes in its estimates (`published_bugs`). Its profiles are not public: step times are the published
ones with D2 kernels for all, whatever the batch, which comes nearest. `one-at-a-time` is what the artifact calls
YARN-CS: while one job runs, no other starts. It is a policy of `benchmarks/evaluation_published.py`, which makes this
table; the others are

```
easyscale simulate --trace $TRACES/easyscale/workload_test.csv --cluster v100:32,p100:16,t4:16 --read times=hetero --read fixed_share=1 --read duplicates=last --switch-cost 0 --start-cost 20 --interval 60 --policy easyscale-homo,easyscale-heter,fifo,backfill,srtf --set easyscale-homo.published_bugs=true --set easyscale-heter.published_bugs=true
```

What matches: the order in JCT and in makespan, and `one-at-a-time`, in which only step times and starts matter. What
does not: both EasyScale policies are slower here in JCT. Known reasons: the artifact's profiles by batch, and two
limits of its proposals which are not in ours (a job at most doubles at a time; plans that waste more than 0.3 are not
proposed). The last three rows are honest queues under the same assumptions: what is gained over `one-at-a-time` is
mostly gained over nothing.
"""

CORRECTED = """The same put right: all 68 rows are jobs, no mistakes in the estimates, 20 s charged for each start and each change.
JCT / makespan in s, for three readings of the step times: D2 kernels for all at one time for all batches, the nearest
to the published file; the same with half of a step in proportion to the batch; and our default, D2 kernels only for
jobs that mix types. An earlier re-run of the published simulator with rebuilt profiles, both mistakes fixed and 20 s
charged, gave 611 / 5,340. Its profiles are not these, so compare within a column. `easyscale` has the best JCT in
each, and its own JCT is below 611 s in each. Its makespan is above that of `easyscale-heter` in each: the longest
jobs get fewer devices while short ones come.
"""

SEEDS = """Eight seeds at a switch of 1 s: seed 0 is the trace as it is, with the others each arrival moves by up to one mean
gap. ± is half of a 95% interval of the mean.
"""

CLAIM_BASELINES = """### Elastic jobs against honest baselines

EasyScale's paper compares with one job at a time (13.2x in JCT, 2.8x in makespan). Against queues that people use, on
its workload, all rows, each switch charged 1 s, 8 seeds:
"""

CLAIM_SIDECAR = """### Changing a running job against ending it and starting it again

Wang et al. (SC'20), on 16 GPUs: up to -63% JCT and -45% makespan against the default scheduler, up to -37% and -20%
against reallocation that ends jobs. Their workload and objective are not public. Here: the first 40 jobs of each of
Pollux's 8 workloads on 16 T4, the policy `sidecar` with a live switch of 1 s and with restarts, and two gang
schedulers (`fifo` is strict, `backfill` is what a default scheduler with an eye on idle devices does). Mean over the
workloads, least and most in brackets. JCT gains more over gang schedulers than theirs did, makespan less: the longest
jobs of this workload last longer than all the queueing. What restarts of 30 to 60 s take away is less than there: a
restart is charged with its seconds alone here (nothing since the last checkpoint is lost, no pod waits in a queue),
jobs last an hour, and policies change fewer of them when that is dear.
"""

BATCH = """### Jobs whose batch may grow

Saxena et al. (MASCOTS'20): about twice the jobs by scaling batch and devices together, against scaling devices at a
fixed batch. Such jobs change what is trained and opt in. Their workload is not public. Here: 60 jobs in an hour on 16
devices, which is more than these can do, each of 8 ESTs that compute for 50 ms and then exchange 400 MB over a slow link:
a larger batch is what saves communication. A sample of a batch b times as large is worth b^-x of one of the original;
batches may grow up to 8 times.
"""

CLAIM_SERVING = """### Idle devices of a service

EasyScale's paper: +62.1% utilization of a serving cluster, released within seconds. Here: a service with 64 T4 whose
own demand follows a day between 25% and 90% of them ({alone} over the day), 1 kept free, beside a cluster of 16 T4;
Pollux's 8 workloads. It must have devices back within 5 s. `added by training`: of the service's device-seconds, in
points; beside it the same against what the service uses itself. A switch of 1 s gives all back in time. One of 20 s
cannot, by its length: that row is there to show that lateness is counted. The curve is ours, not that of a real
service.
"""
