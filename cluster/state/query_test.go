package state

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func view(t *testing.T, l *ledger, fn func(tx *ReadTx) error) {
	t.Helper()
	if err := l.View(fn); err != nil {
		t.Fatal(err)
	}
}

// TestAnswersAreCopies changes everything that it reads. The ledger is not affected.
func TestAnswersAreCopies(t *testing.T) {
	l := filled(t)
	before := l.dump()
	read := func() (v claim.Volume, held []claim.Claim, d claim.Driver, nodes []claim.Node) {
		view(t, l, func(tx *ReadTx) (err error) {
			if v, err = tx.Volume(ref("v0")); err != nil {
				return err
			}
			if held, err = tx.Claims(ref("v0")); err != nil {
				return err
			}
			if d, err = tx.Driver("hostpath"); err != nil {
				return err
			}
			nodes, err = tx.Nodes()
			return err
		})
		return v, held, d, nodes
	}
	v, held, d, nodes := read()
	v.Capabilities[0].AccessMode = "changed"
	v.Parameters["a"] = "changed"
	held[0].Mode = "changed"
	driver := d.Nodes["n"]
	driver.Topology["rack"] = "changed"
	d.Nodes["other"] = claim.NodeDriver{}
	nodes[0].Drivers["hostpath"].Topology["rack"] = "changed"
	delete(nodes[0].Drivers, "hostpath")

	if again := l.dump(); fmt.Sprint(again) != fmt.Sprint(before) {
		t.Error("the ledger was changed by a reader")
	}
	v, held, d, nodes = read()
	if v.Capabilities[0].AccessMode == "changed" || v.Parameters["a"] != "b" || held[0].Mode == "changed" ||
		d.Nodes["n"].Topology["rack"] != "1" || len(d.Nodes) != 1 || nodes[0].Drivers["hostpath"].Topology["rack"] != "1" {
		t.Errorf("a reader sees the changes of another one: %+v %+v %+v %+v", v, held, d, nodes)
	}
}

func TestPages(t *testing.T) {
	l := filled(t)
	other := volume("v1", claim.SingleNodeWriter)
	other.Namespace, other.ExternalID = "zoo", "ext-zoo"
	l.must(&command.RegisterVolume{Volume: other})
	other.PluginID, other.ID = "nfs", "v2"
	l.must(&command.RegisterVolume{Volume: other})

	volumes := func(q VolumeQuery) (ids []string) {
		for {
			var page []claim.Volume
			view(t, l, func(tx *ReadTx) (err error) {
				page, q.After, err = tx.Volumes(q)
				return err
			})
			if q.Limit > 0 && len(page) > q.Limit {
				t.Fatalf("%d on a page of %d", len(page), q.Limit)
			}
			for _, v := range page {
				ids = append(ids, v.String())
			}
			if q.After == "" {
				return ids
			}
		}
	}
	all := []string{"v0", "v1", "v2", "v3", "v4", "zoo/v1", "zoo/v2"}
	for limit := range 9 {
		for name, row := range map[string]struct {
			query VolumeQuery
			want  []string
		}{
			"all":       {VolumeQuery{}, all},
			"driver":    {VolumeQuery{Driver: "hostpath"}, all[:6]},
			"namespace": {VolumeQuery{Namespace: "zoo"}, all[5:]},
			"both":      {VolumeQuery{Namespace: "zoo", Driver: "nfs"}, all[6:]},
			"prefix":    {VolumeQuery{Namespace: "default", Prefix: "v3"}, all[3:4]},
			"none":      {VolumeQuery{Namespace: "defaul"}, nil},
		} {
			row.query.Limit = limit
			if got := volumes(row.query); !slices.Equal(got, row.want) {
				t.Errorf("%s by %d: %v, want %v", name, limit, got, row.want)
			}
		}
	}

	var seen []string
	page := Page{Limit: 1}
	for {
		var held []claim.Claim
		view(t, l, func(tx *ReadTx) (err error) {
			held, page.After, err = tx.Releasing(page)
			return err
		})
		for _, c := range held {
			seen = append(seen, c.Workload.ID+" on "+c.Volume.ID)
		}
		if page.After == "" {
			break
		}
	}
	if want := []string{"w0 on v0", "w0 on v1"}; !slices.Equal(seen, want) {
		t.Errorf("releasing: %v", seen)
	}
	view(t, l, func(tx *ReadTx) error {
		on, err := tx.ClaimsOn("n")
		if err != nil || len(on) != 6 {
			t.Errorf("%d claims on the node, %v", len(on), err)
		}
		workloads, next, err := tx.Workloads("default", Page{Limit: 2})
		if err != nil || len(workloads) != 2 || next != "default/w1" {
			t.Errorf("workloads: %v, next %q, %v", workloads, next, err)
		}
		return err
	})
}

// TestOldRecords reads records without fields that rules now depend on, and releases claims that lack them.
func TestOldRecords(t *testing.T) {
	l := open(t)
	plant(t, l, map[string]string{
		// A volume that is marked as in use although nothing holds it.
		"v/default/idle":    `{"v":1,"r":{"namespace":"default","id":"idle","plugin_id":"d","external_id":"x","access_mode":"single-node-writer","attachment_mode":"file-system"}}`,
		"vd/d/default/idle": "",
		// A volume that is not marked as in use although something holds it, with a claim that lacks all
		// newer fields.
		"v/default/used":             `{"v":1,"r":{"namespace":"default","id":"used","plugin_id":"d","external_id":"y","capabilities":[{"access_mode":"multi-node-single-writer","attachment_mode":"block-device"}]}}`,
		"vd/d/default/used":          "",
		"w/default/w":                `{"v":1,"r":{"ref":{"namespace":"default","id":"w"},"node":"n","status":"running"}}`,
		"c/default/used/default/w":   `{"v":1,"r":{"volume":{"namespace":"default","id":"used"},"workload":{"namespace":"default","id":"w"},"index":3}}`,
		"cw/default/w/default/used":  "",
		"cn//default/used/default/w": "",
	})
	view(t, l, func(tx *ReadTx) error {
		v, err := tx.Volume(ref("idle"))
		if err != nil || v.AccessMode != "" {
			t.Errorf("idle volume is in use as %q, %v", v.AccessMode, err)
		}
		v, err = tx.Volume(ref("used"))
		if err != nil || v.AccessMode != claim.MultiNodeSingleWriter || v.AttachmentMode != claim.BlockDevice {
			t.Errorf("used volume is in use as %s, %s, %v", v.AccessMode, v.AttachmentMode, err)
		}
		for name, read := range map[string]func() ([]claim.Claim, error){
			"by volume":   func() ([]claim.Claim, error) { return tx.Claims(ref("used")) },
			"by workload": func() ([]claim.Claim, error) { return tx.ClaimsOf(workload("w")) },
			"by node":     func() ([]claim.Claim, error) { return tx.ClaimsOn("n") },
		} {
			held, err := read()
			if err != nil || len(held) != 1 {
				t.Errorf("%s: %+v, %v", name, held, err)
				continue
			}
			c := held[0]
			if c.Mode != claim.Write || c.State != claim.Taken || c.Node != "n" || c.AccessMode != claim.MultiNodeSingleWriter {
				t.Errorf("%s: repaired to %+v", name, c)
			}
		}
		return nil
	})
	l.must(&command.EndWorkload{Ref: workload("w")})
	view(t, l, func(tx *ReadTx) error {
		held, _, err := tx.Releasing(Page{})
		if err != nil || len(held) != 1 || held[0].Node != "n" {
			t.Errorf("releasing: %+v, %v", held, err)
		}
		return nil
	})
	l.must(&command.AdvanceClaims{Items: []command.Advance{{
		Volume: ref("used"), Workload: workload("w"), Index: 3,
		To: claim.Freed,
	}}})
	for key := range l.records() {
		if key[0] == 'c' {
			t.Errorf("left: %q", key)
		}
	}
}

func TestTotals(t *testing.T) {
	l := filled(t)
	view(t, l, func(tx *ReadTx) error {
		got, err := tx.Totals()
		if want := (Totals{Volumes: 5, Claims: 6, Tokens: 3}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		return err
	})
}
