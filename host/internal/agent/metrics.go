package agent

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sys/unix"
)

// measureHost adds the metrics of the agent's process and of its data directory's file system.
func (a *agent) measureHost() {
	disk := func(name, help string, of func(fs *unix.Statfs_t) uint64) prometheus.Collector {
		return gauge(name, help, func() float64 {
			var fs unix.Statfs_t
			if unix.Statfs(a.cfg.DataDir, &fs) != nil {
				return 0 // the alert on it is right
			}
			return float64(of(&fs) * uint64(fs.Bsize))
		})
	}
	a.metrics.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		disk("data_dir_free_bytes", "Free bytes of the file system of the data directory, for a user other than root.",
			func(fs *unix.Statfs_t) uint64 { return fs.Bavail }),
		disk("data_dir_size_bytes", "Size of the file system of the data directory.",
			func(fs *unix.Statfs_t) uint64 { return fs.Blocks }),
	)
}

// measureMember adds the metrics of what makes this agent a member of a cluster.
func (m *member) measureMember() {
	m.metrics.MustRegister(
		gauge("lease_seconds", "How long this node may go on to use its volumes without hearing from a server; 0: it may not.",
			func() float64 { return m.lease.Left().Seconds() }),
		gauge("certificate_expiry_timestamp_seconds", "When the agent's certificate expires, in seconds since 1970.",
			func() float64 { return float64(m.certs.NotAfter().Unix()) }),
	)
}

func gauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pannier_" + name, Help: help}, value)
}
