package state

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

func view(t *testing.T, l *ledger, fn func(tx *ReadTx) error) {
	t.Helper()
	check.NoError(t, l.View(fn))
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
