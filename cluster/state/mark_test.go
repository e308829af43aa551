package state

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

// volume reads a volume.
func (l *ledger) volume(id string) (v claim.Volume) {
	l.t.Helper()
	err := l.View(func(tx *ReadTx) (err error) {
		v, err = tx.Volume(ref(id))
		return err
	})
	if err != nil {
		l.t.Fatalf("volume %s: %v", id, err)
	}
	return v
}

func (l *ledger) marks() (marked []claim.Volume) {
	l.t.Helper()
	err := l.View(func(tx *ReadTx) (err error) {
		marked, err = tx.MarkedVolumes()
		return err
	})
	if err != nil {
		l.t.Fatalf("marked volumes: %v", err)
	}
	return marked
}

// mark marks a volume for an act, as it is now.
func (l *ledger) mark(id string, m claim.Mark) claim.Mark {
	l.t.Helper()
	return l.must(&command.TakeMark{Ref: ref(id), IfModifyIndex: l.volume(id).ModifyIndex, Mark: m}).(claim.Mark)
}

func startOf(id string, volumes ...string) *command.StartWorkload {
	c := &command.StartWorkload{Ref: workload(id), Node: "a"}
	for _, v := range volumes {
		c.Claims = append(c.Claims, wanted(v, claim.MultiNodeMultiWriter, claim.Write))
	}
	return c
}

func TestMarkExcludesClaims(t *testing.T) {
	l := open(t)
	for _, id := range []string{"v", "w"} {
		l.must(&command.RegisterVolume{Volume: volume(id, claim.MultiNodeMultiWriter)})
	}
	deleting := claim.Mark{Act: claim.Deleting, By: "ann"}
	mark := l.mark("v", deleting)
	_, err := l.do(startOf("db", "w", "v"))
	if !errors.Is(err, claim.ErrMarked) || !strings.Contains(err.Error(), `volume "v" is being deleted at its driver, by ann, since`) {
		t.Errorf("a start: %v", err)
	}
	l.refused("another definition", claim.ErrMarked, &command.RegisterVolume{Volume: volume("v", claim.MultiNodeMultiWriter)})
	l.refused("its removal", claim.ErrMarked, &command.DeregisterVolume{Ref: ref("v")})
	l.refused("an expansion", claim.ErrMarked, &command.TakeMark{
		Ref: ref("v"), IfModifyIndex: l.volume("v").ModifyIndex, Mark: claim.Mark{Act: claim.Expanding},
	})
	l.refused("a restore", claim.ErrMarked, &command.TakeMark{Mark: claim.Mark{Act: claim.Restoring}})
	if marked := l.marks(); len(marked) != 1 || marked[0].ID != "v" || *marked[0].Mark != mark {
		t.Errorf("marked are %+v", marked)
	}

	// A later call takes it over, and the earlier one cannot end it any more.
	again := l.mark("v", claim.Mark{Act: claim.Deleting, By: "bob"})
	if !again.Repeated || again.By != "ann" || !again.Since.Equal(mark.Since) || again.Index == mark.Index {
		t.Errorf("taken over: %+v after %+v", again, mark)
	}
	l.must(&command.EndMark{Ref: ref("v"), Index: mark.Index})
	l.refused("a start after the earlier call", claim.ErrMarked, startOf("db", "v"))
	l.must(&command.EndMark{Ref: ref("v"), Index: again.Index})
	l.must(startOf("db", "v"))
	l.refused("a mark while it is claimed", claim.ErrVolumeInUse, &command.TakeMark{
		Ref: ref("v"), IfModifyIndex: l.volume("v").ModifyIndex, Mark: deleting,
	})
	l.refused("a mark of what has changed", claim.ErrConflict, &command.TakeMark{Ref: ref("w"), IfModifyIndex: 1, Mark: deleting})

	l.mark("w", deleting)
	made := l.volume("w").CreateIndex
	l.refused("the deletion of another volume", claim.ErrConflict, &command.DeregisterVolume{Ref: ref("w"), Deleted: made + 1})
	l.must(&command.DeregisterVolume{Ref: ref("w"), Deleted: made})
	l.must(&command.RegisterVolume{Volume: volume("w", claim.MultiNodeMultiWriter)})
	l.must(startOf("later", "w"))
	l.refused("a late deletion, while another volume of the name is claimed", claim.ErrConflict,
		&command.DeregisterVolume{Ref: ref("w"), Deleted: made})
	if marked := l.marks(); len(marked) > 0 {
		t.Errorf("left are %+v", marked)
	}
}

func TestMarkEndsWithTheDefinition(t *testing.T) {
	l := open(t)
	v := volume("v", claim.MultiNodeMultiWriter)
	l.must(&command.RegisterVolume{Volume: v})
	mark := l.mark("v", claim.Mark{Act: claim.Expanding, CapacityMin: 7})
	v.Capacity = 7
	l.refused("by another call", claim.ErrConflict, &command.RegisterVolume{Volume: v, Mark: mark.Index + 1})
	l.refused("by a delete that was none", claim.ErrMarked,
		&command.DeregisterVolume{Ref: ref("v"), Deleted: l.volume("v").CreateIndex})
	l.must(&command.RegisterVolume{Volume: v, Mark: mark.Index})
	if got := l.volume("v"); got.Mark != nil || got.Capacity != 7 {
		t.Errorf("got %+v", got)
	}
	l.refused("twice", claim.ErrConflict, &command.RegisterVolume{Volume: v, Mark: mark.Index})
	l.mark("v", claim.Mark{Act: claim.Expanding})
	if over := l.mark("v", claim.Mark{Act: claim.Deleting, By: "bob"}); !over.Repeated || over.By != "bob" {
		t.Errorf("a delete in place of an expansion: %+v", over)
	}
}

// Nodes learn from the ledger alone that a volume has grown at its driver.
func TestGrowthIsNotForgotten(t *testing.T) {
	l := open(t)
	v := volume("v", claim.MultiNodeMultiWriter)
	v.Grown = true
	l.must(&command.RegisterVolume{Volume: v})
	v.Grown = false
	l.must(&command.RegisterVolume{Volume: v})
	if !l.volume("v").Grown {
		t.Error("another registration has forgotten it")
	}
}

func TestRestoringExcludesClaims(t *testing.T) {
	l := open(t)
	l.must(&command.RegisterVolume{Volume: volume("v", claim.MultiNodeMultiWriter)})
	restore := func() command.Command { return &command.TakeMark{Mark: claim.Mark{Act: claim.Restoring, By: "ann"}} }
	inTerm := func(term uint64, c command.Command) error {
		l.index++
		command.SetAt(c, now)
		outcomes, err := l.Apply([]Entry{{Index: l.index, Term: term, Command: c}})
		check.NoError(t, err)
		return outcomes[0].Err
	}
	check.NoError(t, inTerm(5, restore()))
	if err := inTerm(5, startOf("db", "v")); !errors.Is(err, claim.ErrMarked) {
		t.Errorf("a start: %v", err)
	}
	if err := inTerm(5, &command.TakeMark{Ref: ref("v"), IfModifyIndex: 1, Mark: claim.Mark{Act: claim.Deleting}}); !errors.Is(err,
		claim.ErrMarked) {
		t.Errorf("a delete: %v", err)
	}
	check.NoError(t, inTerm(5, startOf("without-volumes")))
	check.NoError(t, inTerm(6, startOf("db", "v"))) // the leader of term 5 can restore nothing any more
	if err := inTerm(6, restore()); !errors.Is(err, claim.ErrVolumeInUse) || !strings.Contains(err.Error(), `workload "db"`) {
		t.Errorf("a restore while there are claims: %v", err)
	}
}

// A snapshot in which an act was under way is restored without the mark: whoever repeats the act might delete a volume
// that is in use.
func TestSnapshotIsRestoredWithoutMarks(t *testing.T) {
	l := open(t)
	l.must(&command.RegisterVolume{Volume: volume("v", claim.MultiNodeMultiWriter)})
	plain := l.records()
	l.must(&command.TakeMark{Mark: claim.Mark{Act: claim.Restoring}})
	if l.records()[restoring] == "" {
		t.Error("the ledger is not marked")
	}
	var copied bytes.Buffer
	if _, err := Reindex(&copied, bytes.NewReader(snapshot(t, l)), 1000); err != nil {
		t.Fatal(err)
	}
	other := open(t)
	restore(t, other, copied.Bytes())
	if !maps.Equal(other.records(), plain) {
		t.Errorf("restored are %v, want %v", other.records(), plain)
	}
	l.must(&command.EndMark{Index: 2})
	l.mark("v", claim.Mark{Act: claim.Deleting})
	copied.Reset()
	if _, err := Reindex(&copied, bytes.NewReader(snapshot(t, l)), 1000); err != nil {
		t.Fatal(err)
	}
	restore(t, other, copied.Bytes())
	other.index = other.AppliedIndex()
	if marked := other.marks(); len(marked) > 0 {
		t.Errorf("marked are %+v", marked)
	}
	other.must(startOf("db", "v"))
}

// What is attached to a node is on each claim that the volume has there, in whichever order they come and go.
func TestIntendAttach(t *testing.T) {
	l := open(t)
	l.must(&command.RegisterVolume{Volume: volume("v", claim.MultiNodeMultiWriter)})
	attached := func() map[string]string {
		t.Helper()
		by := map[string]string{}
		check.NoError(t, l.View(func(tx *ReadTx) error {
			held, err := tx.Claims(ref("v"))
			for _, c := range held {
				by[c.Workload.ID+" on "+c.Node] = c.AttachedBy
			}
			return err
		}))
		return by
	}
	first := l.must(startOf("one", "v")).(command.StartWorkloadResult).Claims[0]
	l.must(startOf("two", "v"))
	elsewhere := startOf("far", "v")
	elsewhere.Node = "b"
	l.must(elsewhere)
	intend := &command.IntendAttach{Volume: ref("v"), Workload: workload("one"), Index: first.Index + 1}
	l.refused("of another claim", claim.ErrClaimNotFound, intend)
	intend.Index = first.Index
	l.must(intend)
	pretends := startOf("three", "v")
	pretends.Claims[0].AttachedBy = "other"
	l.must(pretends)
	want := map[string]string{"one on a": "hostpath", "two on a": "hostpath", "three on a": "hostpath", "far on b": ""}
	if got := attached(); !maps.Equal(got, want) {
		t.Errorf("attached: %v, want %v", got, want)
	}
	l.must(&command.EndWorkload{Ref: workload("one")})
	l.refused("while it is released", claim.ErrClaimNotFound, intend)
	l.must(&command.AdvanceClaims{Items: []command.Advance{{Volume: ref("v"), Workload: workload("one"), To: claim.Freed}}})
	delete(want, "one on a")
	if got := attached(); !maps.Equal(got, want) {
		t.Errorf("attached: %v, want %v", got, want)
	}
}
