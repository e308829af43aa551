package conditions

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/sdk/storage"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("pannier_"+name, help, labels, nil)
}

var (
	abnormalsDesc = desc("volumes_abnormal", "Volumes mounted on this node that their driver reports as abnormal, or whose file system cannot be used.")
	abnormalDesc  = desc("volume_abnormal", "Whether a volume mounted on this node is reported as abnormal by its driver, or its file system cannot be used.",
		"namespace", "volume", "driver")
)

// usageDescs are the metrics of a resource of a volume.
type usageDescs struct{ total, used, available *prometheus.Desc }

func usageDesc(total, used, available, what string) usageDescs {
	of := func(name, which string) *prometheus.Desc {
		return desc("volume_"+name, which+what+" of a volume mounted on this node, as its driver says.",
			"namespace", "volume", "driver")
	}
	return usageDescs{of(total, "All "), of(used, "Used "), of(available, "Available ")}
}

var usageOf = map[storage.Unit]usageDescs{
	storage.Bytes:  usageDesc("capacity_bytes", "used_bytes", "available_bytes", "bytes"),
	storage.Inodes: usageDesc("inodes", "inodes_used", "inodes_free", "inodes"),
}

// Describe implements prometheus.Collector.
func (m *Monitor) Describe(ch chan<- *prometheus.Desc) {
	ch <- abnormalsDesc
	ch <- abnormalDesc
	for _, d := range usageOf {
		ch <- d.total
		ch <- d.used
		ch <- d.available
	}
}

// Collect implements prometheus.Collector. It asks no driver, which could be slow: it has what the last look found.
func (m *Monitor) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.NoVolumes && !m.isRead() {
		m.begun.Notify() // how full the volumes are is not known yet
	}
	m.read = time.Now()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	abnormal := map[volumeKey]bool{} // by its node service or its controller
	for from, c := range m.known {
		abnormal[from.volumeKey] = abnormal[from.volumeKey] || c.Abnormal
	}
	sum := 0.0
	for v, is := range abnormal {
		value := 0.0
		if is {
			value = 1
		}
		sum += value
		if !m.NoVolumes {
			gauge(abnormalDesc, value, v.Namespace, v.ID, v.driver)
		}
	}
	gauge(abnormalsDesc, sum)
	for v, all := range m.full {
		for _, u := range all {
			if d, known := usageOf[u.Unit]; known {
				gauge(d.total, float64(u.Total), v.Namespace, v.ID, v.driver)
				gauge(d.used, float64(u.Used), v.Namespace, v.ID, v.driver)
				gauge(d.available, float64(u.Available), v.Namespace, v.ID, v.driver)
			}
		}
	}
}
