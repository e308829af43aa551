package state_test

import (
	"bytes"
	"testing"

	"github.com/pannier/pannier/cluster/state"
)

// TestServers: raft's configurations are recorded with the entries, survive a restart, and belong to this copy.
func TestServers(t *testing.T) {
	dir := t.TempDir()
	open := func() *state.Store {
		s, err := state.Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	want := func(what string, want state.Servers) {
		t.Helper()
		got, err := s.Servers()
		if err != nil || got.Since != want.Since || got.Index != want.Index ||
			string(got.Configuration) != string(want.Configuration) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	want("an empty ledger", state.Servers{})
	if _, err := s.Apply([]state.Entry{{Index: 3, Servers: []byte("three")}, {Index: 4, Servers: []byte("four")}, {Index: 5}}); err != nil {
		t.Fatal(err)
	}
	want("two configurations", state.Servers{Index: 4, Configuration: []byte("four")})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	want("after a restart", state.Servers{Index: 4, Configuration: []byte("four")})
	if _, err := s.Apply([]state.Entry{{Index: 4, Servers: []byte("again")}}); err != nil {
		t.Fatal(err)
	}
	want("an entry that was applied before", state.Servers{Index: 4, Configuration: []byte("four")})

	var written bytes.Buffer
	snapshot, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	err = snapshot.Write(&written)
	snapshot.Release()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(&written); err != nil {
		t.Fatal(err)
	}
	want("a restored snapshot, whose configuration raft has", state.Servers{Since: 5})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
