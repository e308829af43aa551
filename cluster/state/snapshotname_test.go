package state

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

// A snapshot's name is unique in its namespace, belongs to one volume, and goes with the snapshot.
func TestSnapshotNames(t *testing.T) {
	l := open(t)
	named := func(namespace, name, volume, id string) *command.PutSnapshot {
		return &command.PutSnapshot{Snapshot: claim.Snapshot{
			SnapshotRef: claim.SnapshotRef{Namespace: namespace, Name: name}, PluginID: "hostpath", ID: id,
			Volume: volume, ExternalVolumeID: "ext-" + volume,
		}}
	}
	put := func(c *command.PutSnapshot) command.PutSnapshotResult {
		return l.must(c).(command.PutSnapshotResult)
	}
	first := put(named("default", "before", "a", "s1"))
	if !first.Changed || !first.Snapshot.CreatedAt.Equal(now.Add(time.Second)) {
		t.Errorf("first %+v", first)
	}
	if again := put(named("default", "before", "a", "s1")); again.Changed || !reflect.DeepEqual(again.Snapshot, first.Snapshot) {
		t.Errorf("again %+v, before %+v", again, first)
	}
	put(named("prod", "before", "a", "s2")) // another namespace
	before := l.records()
	other := named("default", "before", "b", "s3")
	elsewhere := named("default", "before", "a", "s3")
	elsewhere.Snapshot.PluginID = "nfs"
	for name, c := range map[string]*command.PutSnapshot{"another volume": other, "another driver": elsewhere} {
		l.refused(name, claim.ErrSnapshotExists, c)
	}
	for _, c := range []*command.PutSnapshot{
		named("default", "../x", "a", "s"), named("", "x", "a", "s"), named("default", "x", "", "s"),
		named("default", "x", "a", ""),
	} {
		if _, err := l.do(c); !errors.Is(err, claim.ErrInvalid) {
			t.Errorf("%+v: %v", c.Snapshot, err)
		}
	}
	l.sameAs(before, "refused names")

	// Its snapshot was deleted behind our back, and taken again.
	if r := put(named("default", "before", "a", "s4")); !r.Changed {
		t.Errorf("taken again %+v", r)
	}
	view(t, l, func(tx *ReadTx) error {
		for id, want := range map[string]int{"s1": 0, "s2": 1, "s4": 1} {
			if found, err := tx.SnapshotsByID("hostpath", id); err != nil || len(found) != want {
				t.Errorf("%s has the names %+v, %v", id, found, err)
			}
		}
		got, err := tx.Snapshot(claim.SnapshotRef{Namespace: "default", Name: "before"})
		if err != nil || got.ID != "s4" {
			t.Errorf("read %+v, %v", got, err)
		}
		return nil
	})
	all := l.records()
	check.NoError(t, l.Restore(bytes.NewReader(snapshot(t, l))))
	l.sameAs(all, "restored from a snapshot of the ledger")

	deleted := l.must(&command.DeleteSnapshot{PluginID: "hostpath", ID: "s4"}).([]claim.SnapshotRef)
	if len(deleted) != 1 || deleted[0].String() != "before" {
		t.Errorf("deleted %+v", deleted)
	}
	unknown := l.must(&command.DeleteSnapshot{PluginID: "hostpath", ID: "s4"}).([]claim.SnapshotRef)
	if len(unknown) != 0 {
		t.Errorf("deleted twice %+v", unknown)
	}
	view(t, l, func(tx *ReadTx) error {
		if _, err := tx.Snapshot(deleted[0]); !errors.Is(err, claim.ErrSnapshotNotFound) {
			t.Errorf("deleted: %v", err)
		}
		return nil
	})
	put(named("default", "before", "b", "s5")) // the name is free
}
