package workload

import (
	"context"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// While another mount namespace has a copy of the volume, the claim is kept.
func TestStopWaitsForCopiesInOtherNamespaces(t *testing.T) {
	for _, driver := range []string{full, plain} {
		t.Run(driver, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, driver, "a")
			target := h.start(t, spec("w", "a")).Mounts[0].HostPath
			p := runScript(t, true, "mount --bind "+target+" "+t.TempDir()+"; "+idle)
			go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
			w := h.waiting(t, "w")
			if !strings.Contains(w.Waiting, "still in use by process") || !strings.Contains(w.Waiting, `volume "a"`) {
				t.Errorf("it waits for %q", w.Waiting)
			}
			if h.count("unpublish a") > 0 || len(h.ledger.claims()) != 1 || at(target) == nil {
				t.Errorf("it was touched: %v", h.happened())
			}
			check.NoError(t, p.Process.Kill())
			p.reap()
			h.ended(t, "w")
			h.clean(t)
		})
	}
}
