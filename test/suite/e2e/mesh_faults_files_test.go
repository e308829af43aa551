package e2e

import (
	"os"
	"testing"

	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
)

// The files with the host's own tokens cannot be read. A start that needs them reports the file, and is undone without
// them: nothing was made in Consul.
func TestMeshHostsTokenFilesAreUnreadable(t *testing.T) {
	t.Parallel()
	m := newFaultyMesh(t, consul.Options{}, minted, "", testhost.LocalDriver(t))
	m.open()
	volume(m.Host, drivers[0], "data", "single-node-writer", "")
	spec := m.faultyWorkload("w")
	for name, path := range map[string]string{"node's": m.nodeFile, "sids'": m.aclFile} {
		for how, spoil := range map[string]func() error{
			"gone":     func() error { return nil },
			"a folder": func() error { return os.Mkdir(path, 0o700) },
			"empty":    func() error { return os.WriteFile(path, nil, 0o600) },
			"a loop":   func() error { return os.Symlink(path, path) },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				m.in(t)
				aside := path + ".aside"
				must(t, os.Rename(path, aside))
				must(t, spoil())
				m.Refused(4, []string{path, "was undone"}, "workload", "start", spec)
				must(t, os.RemoveAll(path))
				must(t, os.Rename(aside, path))
				m.nothingAtAll()
			})
		}
	}
	m.works(spec)
}
