package catalog

import (
	"errors"
	"strings"
	"testing"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/storage"
)

// TestUses has a host with two storage plugins, an issuer of identities, and one plugin that has not come up.
func TestUses(t *testing.T) {
	bridge := supervisor.Status{Name: "csi-bridge", Kind: storage.Kind}
	scratch := supervisor.Status{Name: "scratch", Kind: storage.Kind}
	twin := supervisor.Status{Name: "twin", Kind: storage.Kind, DuplicateOf: "scratch"}
	issuer := supervisor.Status{Name: "issuer", Kind: identity.Kind}
	other := supervisor.Status{Name: "other", Kind: identity.Kind}
	starts := supervisor.Status{Name: "starts"}
	all := []supervisor.Status{bridge, scratch, twin, issuer}

	of := func(kind, plugin string) Use { return Use{Of: "block", ID: "b", Kind: kind, Plugin: plugin} }
	for name, tc := range map[string]struct {
		use  Use
		all  []supervisor.Status
		by   string
		says string // of Check; empty: no error
	}{
		"the preferred one":      {of(storage.Kind, ""), all, "csi-bridge", ""},
		"one by name":            {of(storage.Kind, "scratch"), all, "scratch", ""},
		"the only one":           {of(identity.Kind, ""), all, "issuer", ""},
		"one that has not begun": {of(storage.Kind, "starts"), append(all, starts), "starts", ""},
		"one that may be it":     {of("registration.v1", ""), append(all, starts), "", ""},
		"none of the kind":       {of("registration.v1", ""), all, "", "needs a plugin of kind registration.v1"},
		"two, and none is named": {of(identity.Kind, ""), append(all, other), "", "there are issuer, other: write in the block"},
		"one that is not there":  {of(storage.Kind, "gone"), all, "gone", `names plugin "gone"`},
		"another file of one":    {of(storage.Kind, "twin"), all, "twin", `another file of plugin "scratch"`},
		"one of another kind":    {of(storage.Kind, "issuer"), all, "issuer", "it is of kind identity.v1"},
	} {
		err := tc.use.Check(tc.all)
		if by := tc.use.By(tc.all); by != tc.by || (err != nil) != (tc.says != "") ||
			err != nil && (!errors.Is(err, ErrNotServed) || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%s: by %q, want %q; %v, want %q", name, by, tc.by, err, tc.says)
		}
	}

	uses := []Use{of(storage.Kind, ""), of(identity.Kind, "issuer")}
	for name, tc := range map[string]struct {
		p    supervisor.Status
		says string
	}{
		"one that serves":          {bridge, ""},
		"one that nobody names":    {scratch, `block uses csi-bridge: name "scratch" in a block`},
		"one without anything":     {supervisor.Status{Name: "r", Kind: "registration.v1"}, "nothing that uses"},
		"one that serves by name":  {issuer, ""},
		"one that is a duplicate":  {twin, ""},
		"one that has not come up": {starts, ""},
		"a device plugin":          {supervisor.Status{Name: "gpu", Kind: device.Kind}, ""},
	} {
		if got := Unused(tc.p, all, uses); (got == "") != (tc.says == "") || !strings.Contains(got, tc.says) {
			t.Errorf("%s: %q, want %q", name, got, tc.says)
		}
	}
}
