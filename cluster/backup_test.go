package cluster_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/backup"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// TestBackup restores the ledger of a single host into a cluster of three, replacing its ledger, and restarts the
// servers.
func TestBackup(t *testing.T) {
	t.Parallel()
	alone := clustertest.Start(t)
	register(t, alone, "theirs")
	var file bytes.Buffer
	saved, err := alone.Save(within(t), &file)
	check.NoError(t, err)
	if saved.Cluster != "" || saved.Index == 0 || saved.Size == 0 || saved.Server != "server-1" {
		t.Errorf("saved %+v", saved)
	}
	if seen, err := backup.Inspect(bytes.NewReader(file.Bytes())); err != nil || seen != saved {
		t.Errorf("inspected %+v, %v; saved %+v", seen, err, saved)
	}

	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	register(t, c.Client(), "ours")
	everywhere(t, c, "ours")
	if _, err := c.Follower(t).Restore(within(t), bytes.NewReader(file.Bytes()), "op"); !errors.Is(err, command.ErrNotLeader) {
		t.Errorf("restore on a follower: %v", err)
	}
	var restored cluster.Backup
	clustertest.Eventually(t, "the ledger is restored through the present leader", func() bool {
		restored, err = c.WaitLeader(t).Restore(within(t), bytes.NewReader(file.Bytes()), "op")
		return !errors.Is(err, command.ErrUncertain) && !errors.Is(err, command.ErrNotLeader)
	})
	if err != nil || restored != saved {
		t.Fatalf("restored %+v, %v", restored, err)
	}
	only := func() {
		t.Helper()
		everywhere(t, c, "theirs")
		for _, h := range c.Up() {
			if has(t, h.Node, "ours") {
				t.Errorf("%s still has a record of the replaced ledger", h.Name)
			}
		}
	}
	only()
	register(t, c.Client(), "new")
	everywhere(t, c, "new")
	for _, h := range c.Hosts() {
		h.Stop(t)
	}
	for _, h := range c.Hosts() {
		h.Start(t)
	}
	c.WaitReady(t)
	only()
	everywhere(t, c, "new")
}

// TestBadBackup changes every part of a backup, and truncates it.
func TestBadBackup(t *testing.T) {
	s := clustertest.Start(t)
	register(t, s, "a")
	var file bytes.Buffer
	if _, err := s.Save(within(t), &file); err != nil {
		t.Fatal(err)
	}
	good := file.Bytes()
	header := bytes.IndexByte(good, '\n')
	tried := 0
	refused := func(what string, at int, r io.Reader) {
		t.Helper()
		tried++
		if _, err := s.Restore(within(t), r, "op"); !errors.Is(err, cluster.ErrBadBackup) {
			t.Errorf("%s at byte %d: %v", what, at, err)
		}
	}
	for at := header + 1; at < len(good); at += 3 {
		bad := bytes.Clone(good)
		bad[at] ^= 0x20
		refused("flipped", at, bytes.NewReader(bad))
	}
	for at := 0; at < len(good); at += 7 {
		refused("cut off", at, bytes.NewReader(good[:at]))
	}
	if !has(t, s.Node, "a") || tried < 50 {
		t.Errorf("the ledger is damaged, or only %d were tried", tried)
	}
	register(t, s, "b")
}

// TestRecordsThatNoLedgerHas restores a backup whose checksums are right and one of whose records has an id that is no
// id: as a key, it is longer than the ledger's database takes. An inspection refuses it as the restore does.
func TestRecordsThatNoLedgerHas(t *testing.T) {
	s := clustertest.Start(t)
	register(t, s, "a")
	v := volume(strings.Repeat("l", 65_500))
	record, err := codec.Marshal(v)
	check.NoError(t, err)
	for name, snapshot := range map[string][]byte{
		"a long id": append(binary.AppendUvarint([]byte{'v'}, uint64(len(record))), record...),
		"no record": {'v', 1, 'x'},
	} {
		index := uint64(1)
		snapshot = append(append(binary.BigEndian.AppendUint64([]byte("PANNIER-LEDGER\n\x01"), index), snapshot...), 0)
		sum := sha256.Sum256(snapshot)
		head, err := json.Marshal(backup.Backup{
			Format: backup.Format, Index: index, Size: int64(len(snapshot)), SHA256: hex.EncodeToString(sum[:]),
		})
		check.NoError(t, err)
		file := append(append(head, '\n'), snapshot...)
		if _, err := backup.Inspect(bytes.NewReader(file)); !errors.Is(err, cluster.ErrBadBackup) {
			t.Errorf("%s, inspected: %v", name, err)
		}
		if _, err := s.Restore(within(t), bytes.NewReader(file), "op"); !errors.Is(err, cluster.ErrBadBackup) {
			t.Errorf("%s, restored: %v", name, err)
		}
	}
	register(t, s, "b")
	s.Restart(t)
	if !has(t, s.Node, "a") || !has(t, s.Node, "b") {
		t.Error("the ledger lost a volume")
	}
}
