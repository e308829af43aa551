package claim_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ref(id string) claim.VolumeRef        { return claim.VolumeRef{Namespace: "default", ID: id} }
func workload(id string) claim.WorkloadRef { return claim.WorkloadRef{Namespace: "default", ID: id} }

func volume(access ...claim.AccessMode) claim.Volume {
	v := claim.Volume{Definition: claim.Definition{VolumeRef: ref("mysql"), PluginID: "hostpath", ExternalID: "ext-1"}}
	for _, a := range access {
		v.Capabilities = append(v.Capabilities, claim.Capability{AccessMode: a, AttachmentMode: claim.FileSystem})
	}
	return v
}

func wanted(access claim.AccessMode, mode claim.Mode, who, node string) claim.Claim {
	return claim.Claim{
		Volume: ref("mysql"), Workload: workload(who), Node: node,
		Mode: mode, AccessMode: access, AttachmentMode: claim.FileSystem,
	}
}

// standing returns a claim that was taken 4 minutes ago.
func standing(access claim.AccessMode, mode claim.Mode, who, node string) claim.Claim {
	c := wanted(access, mode, who, node)
	c.State, c.TakenAt, c.Index = claim.Taken, now.Add(-4*time.Minute), 7
	return c
}

// TestModeTable has a row for every cell of the mode table and every kind of existing claim: none, a reader or a
// writer on this node or on another.
func TestModeTable(t *testing.T) {
	const (
		yes, held, readOnly = "yes", "held", "read-only"
	)
	// The order is: no claim, reader here, writer here, reader elsewhere, writer elsewhere. A dash is a
	// combination that cannot exist.
	table := []struct {
		access claim.AccessMode
		mode   claim.Mode
		want   [5]string
	}{
		{claim.SingleNodeReaderOnly, claim.Read, [5]string{yes, yes, "-", held, "-"}},
		{claim.SingleNodeReaderOnly, claim.Write, [5]string{readOnly, readOnly, "-", readOnly, "-"}},
		{claim.SingleNodeWriter, claim.Read, [5]string{yes, held, held, held, held}},
		{claim.SingleNodeWriter, claim.Write, [5]string{yes, held, held, held, held}},
		{claim.SingleNodeSingleWriter, claim.Read, [5]string{yes, held, held, held, held}},
		{claim.SingleNodeSingleWriter, claim.Write, [5]string{yes, held, held, held, held}},
		{claim.SingleNodeMultiWriter, claim.Read, [5]string{yes, yes, yes, held, held}},
		{claim.SingleNodeMultiWriter, claim.Write, [5]string{yes, yes, yes, held, held}},
		{claim.MultiNodeReaderOnly, claim.Read, [5]string{yes, yes, "-", yes, "-"}},
		{claim.MultiNodeReaderOnly, claim.Write, [5]string{readOnly, readOnly, "-", readOnly, "-"}},
		{claim.MultiNodeSingleWriter, claim.Read, [5]string{yes, yes, yes, yes, yes}},
		{claim.MultiNodeSingleWriter, claim.Write, [5]string{yes, yes, held, yes, held}},
		{claim.MultiNodeMultiWriter, claim.Read, [5]string{yes, yes, yes, yes, yes}},
		{claim.MultiNodeMultiWriter, claim.Write, [5]string{yes, yes, yes, yes, yes}},
	}
	if len(table) != 2*len(claim.AccessModes) {
		t.Fatalf("the table has %d rows for %d access modes", len(table), len(claim.AccessModes))
	}
	reasons := map[string]error{yes: nil, held: claim.ErrHeld, readOnly: claim.ErrReadOnly}
	for _, row := range table {
		stand := [5][]claim.Claim{
			{},
			{standing(row.access, claim.Read, "other", "a")},
			{standing(row.access, claim.Write, "other", "a")},
			{standing(row.access, claim.Read, "other", "b")},
			{standing(row.access, claim.Write, "other", "b")},
		}
		for i, cell := range row.want {
			if cell == "-" {
				continue
			}
			// A claim counts in every state until it is freed.
			for _, state := range claim.States[:3] {
				v := volume(row.access)
				stands := slices.Clone(stand[i])
				for j := range stands {
					stands[j].State = state
					v.AccessMode, v.AttachmentMode = row.access, claim.FileSystem
				}
				name := fmt.Sprintf("%s/%s/%d/%s", row.access, row.mode, i, state)
				want := wanted(row.access, row.mode, "me", "a")
				got, created, err := claim.Take(v, stands, want, now)
				if !errors.Is(err, reasons[cell]) || (err == nil) != (cell == yes) {
					t.Errorf("%s: %v, want %s", name, err, cell)
					continue
				}
				if err == nil && (!created || got.State != claim.Taken || !got.TakenAt.Equal(now)) {
					t.Errorf("%s: granted %+v, new: %v", name, got, created)
				}
				if claim.AlwaysAllowed(row.access, row.mode) && cell != yes {
					t.Errorf("%s: AlwaysAllowed, but %s", name, cell)
				}
			}
		}
	}
}

func TestSameWorkloadAgain(t *testing.T) {
	v := volume(claim.SingleNodeWriter, claim.MultiNodeMultiWriter)
	v.AccessMode, v.AttachmentMode = claim.SingleNodeWriter, claim.FileSystem
	own := standing(claim.SingleNodeWriter, claim.Write, "me", "a")
	other := func(change func(*claim.Claim)) claim.Claim {
		c := wanted(claim.SingleNodeWriter, claim.Write, "me", "a")
		change(&c)
		return c
	}
	got, created, err := claim.Take(v, []claim.Claim{own}, other(func(c *claim.Claim) { c.DriverNodeID = "new" }), now)
	if err != nil || created || got != own {
		t.Errorf("the same claim again: %+v, new: %v, %v", got, created, err)
	}
	for name, want := range map[string]claim.Claim{
		"node":   other(func(c *claim.Claim) { c.Node = "b" }),
		"mode":   other(func(c *claim.Claim) { c.Mode = claim.Read }),
		"access": other(func(c *claim.Claim) { c.AccessMode = claim.MultiNodeMultiWriter }),
		"attach": other(func(c *claim.Claim) { c.AttachmentMode = claim.BlockDevice }),
	} {
		if _, _, err := claim.Take(v, []claim.Claim{own}, want, now); !errors.Is(err, claim.ErrConflict) {
			t.Errorf("another %s: %v, want ErrConflict", name, err)
		}
	}
	for _, state := range claim.States[1:3] {
		own.State = state
		if _, _, err := claim.Take(v, []claim.Claim{own}, wanted(claim.SingleNodeWriter, claim.Write, "me", "a"),
			now); !errors.Is(err, claim.ErrHeld) {
			t.Errorf("own claim that is %s: %v, want ErrHeld", state, err)
		}
	}
}

func TestRefusalTexts(t *testing.T) {
	inUse := volume(claim.SingleNodeWriter, claim.MultiNodeSingleWriter)
	inUse.AccessMode, inUse.AttachmentMode = claim.MultiNodeSingleWriter, claim.FileSystem
	db1 := standing(claim.MultiNodeSingleWriter, claim.Write, "db-1", "a")
	db2 := standing(claim.MultiNodeSingleWriter, claim.Read, "db-2", "")
	db2.Workload.Namespace, db2.State, db2.TakenAt = "prod", claim.NodeDetached, now.Add(-50*time.Hour)
	for _, row := range []struct {
		name   string
		want   claim.Claim
		held   []claim.Claim
		reason error
		text   string
	}{
		{
			"one holder", wanted(claim.MultiNodeSingleWriter, claim.Write, "me", "b"),
			[]claim.Claim{db1},
			claim.ErrHeld,
			`volume "mysql" has no write claim left: held by workload "db-1" on node "a" (write, taken, 4m)`,
		},
		{
			"several holders", wanted(claim.MultiNodeSingleWriter, claim.Write, "me", "b"),
			[]claim.Claim{db1, db2},
			claim.ErrHeld,
			`volume "mysql" has no write claim left: held by workload "db-1" on node "a" (write, taken, 4m), ` +
				`workload "prod/db-2" on an unknown node (read, node-detached, 2d)`,
		},
		{
			"other modes", wanted(claim.SingleNodeWriter, claim.Write, "me", "b"),
			[]claim.Claim{db1},
			claim.ErrModes,
			`volume "mysql" cannot be claimed as single-node-writer/file-system while it is in use as ` +
				`multi-node-single-writer/file-system: held by workload "db-1" on node "a" (write, taken, 4m)`,
		},
		{
			"no such capability", wanted(claim.MultiNodeReaderOnly, claim.Write, "me", "b"),
			nil, claim.ErrUnsupported,
			`volume "mysql" cannot be claimed as multi-node-reader-only/file-system: it is registered with ` +
				`[single-node-writer/file-system multi-node-single-writer/file-system]`,
		},
	} {
		_, _, err := claim.Take(inUse, row.held, row.want, now)
		var refusal *claim.Refusal
		if !errors.Is(err, row.reason) || !errors.As(err, &refusal) || err.Error() != row.text {
			t.Errorf("%s:\n got %v\nwant %s", row.name, err, row.text)
			continue
		}
		if refusal.Volume != inUse.VolumeRef || refusal.Mode != claim.Write || len(refusal.Holders) != len(row.held) {
			t.Errorf("%s: %+v", row.name, refusal)
		}
	}
}

func TestMalformedClaims(t *testing.T) {
	v := volume(claim.SingleNodeWriter)
	for name, change := range map[string]func(*claim.Claim){
		"no mode":       func(c *claim.Claim) { c.Mode = "" },
		"gc mode":       func(c *claim.Claim) { c.Mode = claim.GC },
		"access mode":   func(c *claim.Claim) { c.AccessMode = "any" },
		"attachment":    func(c *claim.Claim) { c.AttachmentMode = "" },
		"no node":       func(c *claim.Claim) { c.Node = "" },
		"no workload":   func(c *claim.Claim) { c.Workload.ID = "" },
		"bad namespace": func(c *claim.Claim) { c.Workload.Namespace = "a/b" },
	} {
		c := wanted(claim.SingleNodeWriter, claim.Write, "me", "a")
		change(&c)
		_, _, err := claim.Take(v, nil, c, now)
		var field *claim.FieldError
		if !errors.Is(err, claim.ErrInvalid) || !errors.As(err, &field) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestUpdateWhileInUse(t *testing.T) {
	old := volume(claim.SingleNodeWriter, claim.MultiNodeReaderOnly)
	old.AccessMode, old.AttachmentMode = claim.SingleNodeWriter, claim.FileSystem
	held := []claim.Claim{standing(claim.SingleNodeWriter, claim.Write, "db-1", "a")}
	for name, row := range map[string]struct {
		change  func(*claim.Volume)
		refused bool
	}{
		"parameters":             {func(v *claim.Volume) { v.Parameters = map[string]string{"a": "b"} }, false},
		"another capability off": {func(v *claim.Volume) { v.Capabilities = v.Capabilities[:1] }, false},
		"used capability off":    {func(v *claim.Volume) { v.Capabilities = v.Capabilities[1:] }, true},
		"plugin_id":              {func(v *claim.Volume) { v.PluginID = "other" }, true},
		"external_id":            {func(v *claim.Volume) { v.ExternalID = "other" }, true},
	} {
		next := old
		next.Capabilities = slices.Clone(old.Capabilities)
		row.change(&next)
		if err := claim.CheckUpdate(old, next, held, now); (err != nil) != row.refused || row.refused &&
			!errors.Is(err, claim.ErrVolumeInUse) {
			t.Errorf("%s: %v", name, err)
		}
		if err := claim.CheckUpdate(old, next, nil, now); err != nil {
			t.Errorf("%s with no claim: %v", name, err)
		}
	}
}
