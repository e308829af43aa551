package drivers

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/pannier/pannier/sdk/storage"
)

// other is a process of the storage plugin that reports drivers differently.
type other struct {
	storage.Client
	real *bridge
	see  func(fp *storage.Fingerprint)
	err  error
}

func (o *other) Fingerprint(ctx context.Context, d storage.Driver, opts storage.FingerprintOptions,
	report func(storage.Fingerprint) error,
) error {
	if o.err != nil {
		return o.err
	}
	return o.real.Fingerprint(ctx, d, opts, func(fp storage.Fingerprint) error {
		if o.see != nil {
			o.see(&fp)
		}
		return report(fp)
	})
}

func TestAnotherProcessOfThePluginMustSeeTheSame(t *testing.T) {
	h, stop := external(t)
	h.declareExternal()
	h.healthy("e")
	for name, tc := range map[string]struct {
		other other
		want  string // "": it agrees
	}{
		"the same":        {},
		"another version": {other: other{see: func(fp *storage.Fingerprint) { fp.Version += "-next" }}},
		"another node id": {other{see: func(fp *storage.Fingerprint) {
			n := *fp.Node
			n.NodeID = "x"
			fp.Node = &n
		}}, `driver "e": this process sees another fingerprint: node NodeID x, not node-1`},
		"another provider": {
			other{see: func(fp *storage.Fingerprint) { fp.Provider = "x" }},
			`provider "x", not "test.example.com"`,
		},
		"more abilities": {other: other{see: func(fp *storage.Fingerprint) {
			n := *fp.Node
			n.StageUnstage, n.Expand = true, true
			fp.Node, fp.Controller = &n, &storage.ControllerCapabilities{}
		}}},
		"fewer abilities": {
			other{see: func(fp *storage.Fingerprint) { fp.Node = nil }},
			`finds it unhealthy: the type is monolith`,
		},
		"unhealthy": {
			other{see: func(fp *storage.Fingerprint) { fp.Healthy, fp.Message = false, "no luck" }},
			`driver "e" is healthy, and this process finds it unhealthy: no luck`,
		},
		"a failed call": {other{err: errors.New("not today")}, `driver "e": not today`},
	} {
		tc.other.real = h.bridge
		err := h.CheckCompatible(t.Context(), &tc.other, every)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	stop()
	h.wait("e", "unhealthy", func(d Driver) bool { return !d.Healthy })
	if err := h.CheckCompatible(t.Context(), &other{err: errors.New("not today")}, every); err != nil {
		t.Errorf("a driver that is down keeps a plugin from being swapped: %v", err)
	}
}

func TestAnAbilityThatIsLostIsNamed(t *testing.T) {
	was := storage.Fingerprint{
		Controller: &storage.ControllerCapabilities{AttachDetach: true, Clone: true},
		Node:       &storage.NodeCapabilities{NodeID: "n", MaxVolumes: 4, StageUnstage: true},
	}
	is := storage.Fingerprint{
		Controller: &storage.ControllerCapabilities{AttachDetach: true, Expand: true},
		Node:       &storage.NodeCapabilities{NodeID: "n", MaxVolumes: 5, StageUnstage: true},
	}
	if got := strings.Join(differences(was, is),
		"; "); got != "controller Clone false, not true; node MaxVolumes 5, not 4" {
		t.Errorf("got %s", got)
	}
	is.Node = nil
	if got := strings.Join(differences(was, is), "; "); got != "controller Clone false, not true; no node service" {
		t.Errorf("got %s", got)
	}
}

func every(string) bool { return true }
