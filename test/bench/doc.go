// Package bench measures what Pannier costs: the real programs, the real driver, a real disk.
// It has no tests, one benchmark (BenchmarkPannier), and asserts nothing about time: its rows go to a file, with the
// machine, as JSON and as a table. `make bench` runs it, with the benchmarks below the API, on an idle machine;
// TABLE.md has the results, NOTES.md what is missed and why, docs/benchmarks.md the few numbers for users.
//
// Each measurement has a bound, so that all of them take less than 20 minutes: a series ends early when its time is
// over, but not before its second turn. FULL=1 measures without bounds, and what takes longer.
//
// # How each number is measured
//
// Start and stop. One agent with csi-bridge and csi-local, two volumes of 64 MiB with ext4. In
// turns, 300 times after 10 that do not count: a workload with the first volume is started and
// stopped through the API, then the four node calls are made on the same driver's socket for the
// second. A start ends with the answer that the workload runs, a release with the answer that no
// mount and no claim is left. What Pannier adds is the difference of the medians.
//
// At once. 100 workloads are started through the API at the same time, each with a volume of 64 MiB of its own, and
// stopped; then the node calls are made for 100 other volumes at the same time over one connection to the driver. Eight
// turns; a time is from the first call to the last answer.
//
// Fsyncs. strace counts the sync calls of all the agent's threads for 16 workloads, one by one
// and at once. A start has one, raft's, for the claims; the journal is not synced. A release has
// two: that the workload has ended, while its volume is unmounted, and that its claim is gone.
// Concurrent ones share theirs.
//
// Whole commands. From fork to end, in turns 40 times: a hello world in Go, pannier version,
// and pannier workload run of true with one volume, which is claimed, mounted, unmounted and released.
//
// Claims. cluster.Node in the benchmark's process, one voter, log synced: no API, no driver. Two
// ledgers, with 100 and 100,000 volumes, take a claim in turns, 2,000 each; for the rates, 1, 16
// and 256 goroutines claim.
//
// Ready. From fork to the first 200 of /v1/health, polled every millisecond, twelve times: with an
// empty data directory, and after kill -9 with plugin and driver running.
//
// Upgrade. A list of one volume is read by 64 clients over their own connections: a read is due every millisecond, and
// its time counts from then. After five seconds without upgrades, the program is replaced and pannier agent upgrade
// run 30 times, a second apart. Extra is the time above the median of the first five seconds.
//
// Idle. Half a minute after ten workloads with a volume each were started, for a minute: CPU time of the agent and its
// four plugins, and the voluntary context switches of all their threads. A busy machine makes Go's runtime look at its
// threads more often, so there the wake-ups are more than on an idle one. Resident memory is the median of a look a
// second.
//
// Traces. One agent that exports spans over OTLP/HTTP to a collector in the benchmark's process, and one that records
// none, each with a volume of its own: a workload is started and stopped on one, then on the other, 300 times. What a
// span takes while traces are off is measured beside the plugin call, since a call then has no other part of tracing.
//
// Pages. A real Chromium without a profile, its cache emptied before each load, opens pages of the plugin web on a host
// with 10,000 volumes, and the same bytes from a server in the benchmark's process: what Chromium itself takes. The
// first contentful paint and the first byte count from the begin of the navigation, as the Performance API has them.
//
// Memory. 10,000 volumes are created through the API, 200 workloads started and stopped, all
// volumes listed in one answer. VmHWM is read at once, VmRSS and RssAnon after 35 s.
//
// Restart. A ledger with 100,000 volumes and as many claims of another node; three restarts each.
// After the end of the machine the ledger is rebuilt from raft's snapshot and log, which takes
// longer (cluster/DESIGN.md). A full run has 1,000,000, too.
//
// Sidecar. One Consul server with ACLs and TLS. 150 workloads with one service and its sidecar;
// then the same calls on Consul's API alone, one after the other and as much at once as they can be. No Envoy runs.
//
// Tokens. The host's token authority on a real one-voter ledger, sids in its own process. 64
// goroutines get 256 tokens in each of 31 turns, in four ways in rotation: Consul's API alone;
// through Pannier with the intents already recorded; both again with the workload's start in the
// ledger. sids' rate is set to 1,000,000 (default 500). CPU time is that of benchmark,
// plugins and Consul together.
//
// Bootstrap. 20 through the host, then one consul connect envoy -bootstrap as a whole process, 15
// turns.
//
// 1,000 services. Without sidecars and checks, 16 at once. A proxy counts requests to Consul over
// 20 passes. Then ten services are removed at the Consul agent, 20 times, and a pass repairs
// them.
//
// Plugin call. The same small identity call on a plain gRPC server, through go-plugin's client
// with AutoMTLS, and through the host's catalog and supervisor, in turns of 200.
//
// Swaps. A call is due every millisecond and its time counts from then. After five seconds without
// swaps, 50 good and 50 bad binaries (twelve ways) are renamed into the plugin directory. Extra
// is the time above the median of the first five seconds. A file is taken 100 ms after it was renamed, so the
// time until a new generation serves has that wait in it.
//
// Binaries that fail. 25 new binaries come up well and answer every call with
// Internal, while a call is due every millisecond. No probe refuses them. Each serves from the end
// of the swap to it until the end of the swap back.
//
// Claims on three servers. Three agents on loopback with default settings, TLS and synced logs;
// clients are an agent's RPC client with certificate and heartbeats. Each claim checks the
// caller, refuses a held volume, and records workload, claim and request key. Beside them Consul
// (check-and-set over HTTP to the leader) and etcd (compare-and-put over gRPC to the leader),
// without TLS, synced as well, values of the same size. Six turns; a ratio is the median of the
// turns' own. CPU time is that of servers and clients together.
//
// Leader killed. SIGKILL for 100 seconds, in a full run 120 times; from before the signal until the node's next
// claim. The killed server votes again before the next round. Two servers sync term and vote first, so a
// busy disk shows: in one earlier run two of 120 took 3.6 and 5.5 s.
//
// 1,000 nodes. Real serf members in one process, five at a time, as fast as gossip and the cores can, with longer
// probe timeouts than default because one process stands for 1,000 hosts. Each connects
// with its own certificate, registers a driver's fingerprint, and sends heartbeats.
//
// Release after a node's end. A node holds 1,000 attached volumes and is declared down; the
// driver detaches 16 at a time and three states of each are synced. In the same run the
// same driver is called directly.
//
// A ledger that grows. One server's ledger in the benchmark's process, up to 1,000 records of nodes and 100,000
// volumes, in a full run to 10,000 and 1,000,000. The leader's tracker answers heartbeats, 64 at a time; what its
// other loops read is read once.
//
// Herds (make herd). Three agents on loopback with a lease of 20 s, and in the benchmark's process the client of each
// node: certificate, address and connections of its own, the lease's keeper with a fence in memory, the record with a
// driver, the query that follows its drain. Three sizes. All nodes join at once, and again after a power cut; the
// leader gets SIGKILL, and is started again; another server is restarted; a quarter of the nodes, with ten volumes
// each, is cut off, and as many others wait for these volumes and claim them. The time is until every node has a lease
// by a heartbeat since the scenario began, of which each sends one in 3.3 s, or until all claims are there. Requests
// and connections are counted by the nodes. A lease that ends while its node is there counts as lost.
package bench
