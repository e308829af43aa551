package browser

import "testing"

// Each page of the menu is readable: it has content, no error, contrast in both schemes, and fits a phone.
func TestPages(t *testing.T) {
	t.Parallel()
	r := newRig(t, "actions = true")
	for _, id := range []string{"data", "orders", "uploads"} {
		r.volume(id)
	}
	r.workload("db", "data")
	r.workload("shop", "orders", "uploads")
	b := newBrowser(t)
	b.signIn(r, r.manager)
	for _, p := range []struct{ name, path, has string }{
		{"overview", "/", "Nodes ready"},
		{"volumes", "/volumes", "uploads"},
		{"volume", "/volumes/default/data", "db"},
		{"nodes", "/nodes", "a"},
		{"node", "/nodes/a", "shop"},
		{"workloads", "/workloads", "shop"},
		{"workload", "/workloads/default/shop", "publish"},
		{"plugins", "/plugins", "csi-bridge"},
		{"plugin", "/plugins/csi-bridge", "Generation"},
		{"drivers", "/drivers", "local"},
		{"driver", "/drivers/local", "csi-local"},
		{"services", "/services", "Consul tokens"},
		{"releases", "/releases", "None waits"},
		{"events", "/events", "started"},
		{"checks", "/checks", "mount propagation"},
	} {
		b.open(r.url(p.path))
		b.live()
		b.sees("main", p.has)
		b.looks()
		b.picture(p.name)
	}
}
