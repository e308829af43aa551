package cluster_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/testhost"
)

// asking asks hosts through each other, and then one that is cut off from all.
func (n nodes) asking(t *testing.T) {
	hosts := []*testhost.Host{n.s1, n.s3, n.n1, n.n2}
	for _, from := range hosts {
		for _, to := range hosts {
			if got := from.Run("status", "-node", to.Name); !strings.Contains(got, to.Name+" in ") {
				t.Errorf("%s answers through %s:\n%s", to.Name, from.Name, got)
			}
			if got := from.Run("plugin", "list", "-node", to.Name); !strings.Contains(got, "csi-bridge") {
				t.Errorf("the plugins of %s through %s:\n%s", to.Name, from.Name, got)
			}
			if got := from.Run("events", "-node", to.Name, "-topic", "driver"); !strings.Contains(got, "driver") {
				t.Errorf("the events of %s through %s:\n%s", to.Name, from.Name, got)
			}
		}
	}
	n.c.Net.Part(n.n2.Net)
	defer n.c.Net.Heal()
	for _, from := range []*testhost.Host{n.s1, n.n1} {
		for _, command := range []string{"status", "events"} {
			const bound = 10 * time.Second // an agent gives up after five or six
			begun := time.Now()
			out := from.Try(command, "-node", n.n2.Name)
			if out.Code != 1 || !strings.Contains(out.Stderr, `ask node "`+n.n2.Name+`"`) ||
				!strings.Contains(out.Stderr, "pannier node status "+n.n2.Name) || time.Since(begun) > bound {
				t.Errorf("%s of %s, which is cut off, through %s after %s: %d, %s", command, n.n2.Name, from.Name,
					time.Since(begun), out.Code, out.Stderr)
			}
		}
	}
}
