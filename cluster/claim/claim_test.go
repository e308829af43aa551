package claim_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/test/lib/check"
)

func TestStates(t *testing.T) {
	for i, from := range claim.States {
		for j, to := range claim.States {
			if got := claim.CanAdvance(from, to); got != (j >= i) {
				t.Errorf("from %s to %s: %v", from, to, got)
			}
		}
		if releasing := i > 0 && i < len(claim.States)-1; from.Releasing() != releasing {
			t.Errorf("%s: releasing is %v", from, from.Releasing())
		}
	}
	if claim.CanAdvance("", claim.Freed) || claim.CanAdvance(claim.Taken, "gone") || claim.State("").Releasing() {
		t.Error("an unknown state is accepted")
	}
}

func TestIDs(t *testing.T) {
	for _, good := range []string{"a", "A-z_0.9", "...", strings.Repeat("x", 128), "-"} {
		if err := claim.CheckID(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", ".", "..", "a/b", "../etc", "a b", "a\x00", "ä", strings.Repeat("x", 129), "a\n"} {
		if err := claim.CheckID(bad); err == nil {
			t.Errorf("%q is accepted as an id", bad)
		}
	}
}

func TestVolumeIDs(t *testing.T) {
	many := strings.Repeat("[", 63)
	for _, good := range []string{
		"a", "A-z_0.9", "data[0]", "a:b@c,d=e+f", "x;$(y)`z`\"'\\*?|<>&!#%^~{}()", many, many + strings.Repeat("x", 65),
		strings.Repeat("x", 128),
	} {
		if err := claim.CheckVolumeID(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for bad, want := range map[string]string{
		"": "is missing", ".": "must not be", "..": "must not be", "a/b": "'/'", "../etc": "'/'", "a b": "' '", "a\x00": "'\\x00'",
		"ä": "'ä'", "a\n": "'\\n'", "a\x7f": "'\\x7f'", "\xff": "'\ufffd'", many + "[": "at most 63",
		strings.Repeat("x", 129): "longer than 128", strings.Repeat("[", 129): "longer than 128",
	} {
		if err := claim.CheckVolumeID(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", bad, err, want)
		}
	}
}

func TestVolumeFields(t *testing.T) {
	for field, change := range map[string]func(*claim.Volume){
		"id":                         func(v *claim.Volume) { v.ID = "a/b" },
		"namespace":                  func(v *claim.Volume) { v.Namespace = "" },
		"plugin_id":                  func(v *claim.Volume) { v.PluginID = "" },
		"external_id":                func(v *claim.Volume) { v.ExternalID = "" },
		"capability":                 func(v *claim.Volume) { v.Capabilities = nil },
		"access_mode":                func(v *claim.Volume) { v.Capabilities[0].AccessMode = "x" },
		"attachment_mode":            func(v *claim.Volume) { v.Capabilities[0].AttachmentMode = "x" },
		"capacity_min":               func(v *claim.Volume) { v.CapacityMin, v.CapacityMax = 2, 1 },
		"capacity_min, capacity_max": func(v *claim.Volume) { v.CapacityMax = -1 },
		"snapshot_id":                func(v *claim.Volume) { v.CloneID, v.SnapshotID = "a", "b" },
	} {
		v := volume(claim.SingleNodeWriter)
		check.NoError(t, v.Validate())
		change(&v)
		err := v.Validate()
		var f *claim.FieldError
		if !errors.As(err, &f) || f.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	twice := volume(claim.SingleNodeWriter, claim.SingleNodeWriter)
	if err := twice.Validate(); !errors.Is(err, claim.ErrInvalid) {
		t.Errorf("a capability that is there twice: %v", err)
	}
}

func TestNodeFields(t *testing.T) {
	good := func() claim.Node {
		return claim.Node{
			Name: "a", Drivers: map[string]claim.NodeDriver{"d": {ID: "d", Type: claim.Monolith}},
			Devices: []claim.NodeDevices{{Plugin: "p", Vendor: "v", Type: "gpu", Name: "T4", Total: 2, Healthy: 1}},
		}
	}
	n := good()
	check.NoError(t, n.Validate())
	for name, change := range map[string]func(*claim.Node){
		"name": func(n *claim.Node) { n.Name = "a/b" },
		"driver id": func(n *claim.Node) {
			n.Drivers["../x"] = claim.NodeDriver{
				ID:   "../x",
				Type: claim.Monolith,
			}
		},
		"other id":                 func(n *claim.Node) { n.Drivers["e"] = claim.NodeDriver{ID: "f", Type: claim.Monolith} },
		"type":                     func(n *claim.Node) { n.Drivers["d"] = claim.NodeDriver{ID: "d"} },
		"a group without a vendor": func(n *claim.Node) { n.Devices = []claim.NodeDevices{{Type: "gpu", Name: "T4"}} },
		"more healthy than all":    func(n *claim.Node) { n.Devices[0].Healthy = 3 },
		"too many groups":          func(n *claim.Node) { n.Devices = slices.Repeat(n.Devices, claim.MaxDeviceGroups+1) },
	} {
		n := good()
		change(&n)
		if err := n.Validate(); !errors.Is(err, claim.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUnknownNode: a claim on an unknown node counts as one on a different node.
func TestUnknownNode(t *testing.T) {
	lost := standing(claim.SingleNodeMultiWriter, claim.Write, "old", "")
	v := volume(claim.SingleNodeMultiWriter)
	if _, _, err := claim.Take(v, []claim.Claim{lost}, wanted(claim.SingleNodeMultiWriter, claim.Read, "me", "a"),
		now); !errors.Is(err, claim.ErrHeld) {
		t.Errorf("a claim on an unknown node was shared: %v", err)
	}
}
