package plugins_test

import (
	"testing"

	"github.com/pannier/pannier/sdk/conformance"
)

// A plugin in Python works like any other.
func TestPythonUnderAnAgent(t *testing.T) {
	t.Parallel()
	serves(t, "python-dirs", built(t, "python-dirs"))
}

func TestPythonPageIsProved(t *testing.T) {
	t.Parallel()
	conformance.Test(t, conformance.Config{Binary: built(t, "python-page"), Listen: []string{"http"}})
}

// A front door in Python loses no request either, when it is swapped, killed, or served by the next agent, which has
// its sockets from it.
func TestPythonPageUnderAnAgent(t *testing.T) {
	t.Parallel()
	d := newDoorOf(t, "python-page", built(t, "python-page"))
	d.up()
	end := d.load()
	for range 3 {
		before := plugin(t, d.Host, d.name)
		d.swap()
		d.Eventually("the process that was replaced has ended", func() error { return gone(before) })
	}
	t.Logf("%d requests were answered", end())
	if p := plugin(t, d.Host, d.name); len(p.GetRefused()) > 0 || len(p.GetSwaps()) != 3 {
		t.Errorf("the plugin is %v", p)
	}
	d.kill()
	d.restart()
	d.underLoad()
	d.kill()
	d.stop()
}
