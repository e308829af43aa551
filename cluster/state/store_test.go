package state

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/backup"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

func TestMain(m *testing.M) {
	// Each check opens three ledgers, so the default is low. -rapid.checks on the command line takes
	// precedence.
	if err := flag.Set("rapid.checks", "40"); err != nil {
		panic(err)
	}
	// The tests are about what is in the files. On a busy disk they would wait for its syncs most of the time.
	const memory, enough = "/dev/shm", 2 << 30
	var fs unix.Statfs_t
	if unix.Statfs(memory, &fs) == nil && fs.Type == unix.TMPFS_MAGIC && fs.Bavail*uint64(fs.Bsize) > enough {
		if err := os.Setenv("TMPDIR", memory); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// filled returns a ledger with a record of each kind.
func filled(t testing.TB) *ledger {
	l := open(t)
	fill(l)
	return l
}

func fill(l *ledger) {
	driver := map[string]claim.NodeDriver{"hostpath": {
		ID: "hostpath", Type: claim.Monolith, Healthy: true,
		Topology: map[string]string{"rack": "1"},
	}}
	l.must(&command.PutNode{Node: claim.Node{Name: "n", Drivers: driver}})
	for i := range 5 {
		v := volume(fmt.Sprint("v", i), claim.MultiNodeMultiWriter)
		v.Parameters = map[string]string{"a": "b"}
		l.must(&command.RegisterVolume{Volume: v})
	}
	for i := range 3 {
		l.must(&command.StartWorkload{Ref: workload(fmt.Sprint("w", i)), Node: "n", Claims: []claim.Claim{
			wanted("v0", claim.MultiNodeMultiWriter, claim.Write), wanted("v1", claim.MultiNodeMultiWriter, claim.Read),
		}, Tokens: []claim.Token{{ID: tokenID(i), Service: "web", Consul: "default"}}})
	}
	l.must(&command.EndWorkload{Ref: workload("w0")})
	l.must(&command.PutSigningKey{Key: claim.SigningKey{ID: "k", Public: []byte("{}"), Sealed: []byte{1}}})
	l.must(&command.RotateSigningKey{Next: claim.SigningKey{ID: "n", Public: []byte("{}"), Sealed: []byte{2}}})
}

func TestReopen(t *testing.T) {
	dir := t.TempDir()
	l := openIn(t, dir)
	fill(l)
	want, index := l.dump(), l.AppliedIndex()
	check.NoError(t, l.Close())
	again := openIn(t, dir)
	if !maps.Equal(want, again.dump()) || again.AppliedIndex() != index {
		t.Errorf("opened again at %d, closed at %d", again.AppliedIndex(), index)
	}
}

// TestAnotherBoot opens a ledger that was not closed before the machine crashed.
func TestAnotherBoot(t *testing.T) {
	dir := t.TempDir()
	l := openIn(t, dir)
	fill(l)
	if _, err := Open(dir, nil); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("opened twice: %v", err)
	}
	crashed := copyDir(t, dir) // as if the process had been killed now
	if got := openIn(t, crashed); got.AppliedIndex() != l.AppliedIndex() {
		t.Errorf("after a kill it has %d entries of %d", got.AppliedIndex(), l.AppliedIndex())
	}
	rebooted := copyDir(t, dir)
	path := filepath.Join(t.TempDir(), "boot_id")
	check.NoError(t, os.WriteFile(path, []byte("another\n"), 0o600))
	defer func(old string) { bootIDPath = old }(bootIDPath)
	bootIDPath = path
	if got := openIn(t, rebooted); got.AppliedIndex() != 0 || len(got.records()) != 0 {
		t.Errorf("after a machine crash %d entries are trusted", got.AppliedIndex())
	}
	check.NoError(t, l.Close())
	if got := openIn(t, dir); got.AppliedIndex() != l.AppliedIndex() {
		t.Errorf("closed before the reboot, it has %d entries of %d", got.AppliedIndex(), l.AppliedIndex())
	}
}

// TestAnotherLayout: a ledger of a made-up next version is rebuilt by the program that is put back, whether it was left
// open or closed, and so is one that says nothing.
func TestAnotherLayout(t *testing.T) {
	for _, closed := range []bool{false, true} {
		dir := t.TempDir()
		l := openIn(t, dir)
		fill(l)
		if closed {
			check.NoError(t, l.Close())
		}
		mark, err := os.ReadFile(filepath.Join(dir, openFile))
		check.NoError(t, err)
		next := strings.Replace(string(mark), layout, "2", 1)
		for said, kept := range map[string]bool{string(mark): true, next: false, "": false} {
			other := copyDir(t, dir)
			check.NoError(t, os.WriteFile(filepath.Join(other, openFile), []byte(said), 0o600))
			if got := openIn(t, other).AppliedIndex(); (got != 0) != kept {
				t.Errorf("closed %t, with %q in the file it has %d entries", closed, said, got)
			}
		}
	}
}

func copyDir(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	check.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

func TestRestoreReplacesAll(t *testing.T) {
	source := filled(t)
	data := snapshot(t, source)
	dir := t.TempDir()
	l := openIn(t, dir)
	l.must(&command.RegisterVolume{Volume: volume("old", claim.SingleNodeWriter)})
	changed := l.Watch(t.Context(), TopicVolumes)
	before := l.records()

	// A part of a snapshot changes nothing.
	for i := 0; i < len(data); i += 1 + len(data)/25 {
		if err := l.Restore(bytes.NewReader(data[:i])); !errors.Is(err, backup.ErrBadSnapshot) {
			t.Fatalf("cut off at %d of %d: %v", i, len(data), err)
		}
	}
	l.sameAs(before, "a part of a snapshot")

	restore(t, l, data)
	l.sameAs(source.records(), "restored")
	select {
	case <-changed:
	default:
		t.Error("nobody was told")
	}
	l.index = l.AppliedIndex()
	l.must(&command.RegisterVolume{Volume: volume("next", claim.SingleNodeWriter)})
	want := l.records()
	check.NoError(t, l.Close())
	// A directory that an interrupted restore has left.
	check.NoError(t, os.MkdirAll(filepath.Join(dir, "db-2"), 0o700))
	openIn(t, dir).sameAs(want, "opened again")
	if found, _ := filepath.Glob(filepath.Join(dir, "db-*")); len(found) != 1 {
		t.Errorf("left behind: %v", found)
	}
}

// TestSnapshotStandsStill writes a snapshot after more entries were applied, and lets a reader finish during
// a restore.
func TestSnapshotStandsStill(t *testing.T) {
	l := filled(t)
	want := l.records()
	s, err := l.Snapshot()
	check.NoError(t, err)
	l.must(&command.DeregisterVolume{Ref: ref("v0"), Force: true})
	var out bytes.Buffer
	check.NoError(t, s.Write(&out))
	s.Release()

	restored := make(chan error, 1)
	err = l.View(func(tx *ReadTx) error {
		go func() { restored <- l.Restore(&out) }()
		deadline := time.Now().Add(time.Minute)
		for l.AppliedIndex() == l.index && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if _, err := tx.Volume(ref("v0")); !errors.Is(err, claim.ErrVolumeNotFound) {
			t.Errorf("the reader sees the restored ledger: %v", err)
		}
		return nil
	})
	check.NoError(t, errors.Join(err, <-restored))
	l.sameAs(want, "restored")
}

// TestFaultStopsTheStore applies an entry that cannot be applied. No later entry may be applied, and raft
// must not get a snapshot.
func TestFaultStopsTheStore(t *testing.T) {
	l := open(t)
	plant(t, l, map[string]string{"v/default/broken": "{"})
	_, err := l.Apply([]Entry{
		{Index: 1, Command: &command.RegisterVolume{Volume: volume("good", claim.SingleNodeWriter)}},
		{Index: 2, Command: &command.DeregisterVolume{Ref: ref("broken")}},
		{Index: 3, Command: &command.RegisterVolume{Volume: volume("late", claim.SingleNodeWriter)}},
	})
	if !errors.Is(err, command.ErrStopped) || l.AppliedIndex() != 0 {
		t.Fatalf("applied %d: %v", l.AppliedIndex(), err)
	}
	if _, err := l.Apply([]Entry{{Index: 3}}); !errors.Is(err, command.ErrStopped) {
		t.Errorf("the next entry: %v", err)
	}
	if _, err := l.Snapshot(); !errors.Is(err, command.ErrStopped) {
		t.Errorf("snapshot: %v", err)
	}
	if !errors.Is(l.Err(), command.ErrStopped) {
		t.Errorf("Err: %v", l.Err())
	}
}

// plant writes raw records, like those of an older release or after a fault.
func plant(t testing.TB, l *ledger, raw map[string]string) {
	t.Helper()
	g, release, err := l.acquire()
	check.NoError(t, err)
	defer release()
	batch := g.db.NewWriteBatch()
	for key, value := range raw {
		check.NoError(t, batch.Set([]byte(key), []byte(value)))
	}
	check.NoError(t, batch.Flush())
}

func TestClosed(t *testing.T) {
	l := filled(t)
	changed := l.Watch(t.Context(), TopicVolume(ref("v0")))
	closed := make(chan error, 1)
	err := l.View(func(tx *ReadTx) error {
		go func() { closed <- l.Close() }()
		for l.View(func(*ReadTx) error { return nil }) == nil {
			runtime.Gosched()
		}
		select {
		case <-closed:
			t.Error("closed under a reader")
		case <-time.After(20 * time.Millisecond): // long enough that a failure would show
		}
		_, err := tx.Volume(ref("v0"))
		return err
	})
	check.NoError(t, errors.Join(err, <-closed, l.Close()))
	<-changed
	if err := l.View(func(*ReadTx) error { return nil }); !errors.Is(err, command.ErrClosed) {
		t.Errorf("View: %v", err)
	}
	if _, err := l.Apply([]Entry{{Index: 99}}); !errors.Is(err, command.ErrClosed) {
		t.Errorf("Apply: %v", err)
	}
	if _, err := l.Snapshot(); !errors.Is(err, command.ErrClosed) {
		t.Errorf("Snapshot: %v", err)
	}
	if err := l.Restore(bytes.NewReader(nil)); !errors.Is(err, command.ErrClosed) {
		t.Errorf("Restore: %v", err)
	}
}

func TestWatch(t *testing.T) {
	l := filled(t)
	fired := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	for name, row := range map[string]struct {
		topics  []Topic
		command command.Command
		fires   bool
	}{
		"a volume": {
			[]Topic{TopicVolume(ref("v3"))},
			&command.RegisterVolume{Volume: volume("v3", claim.SingleNodeWriter)}, true,
		},
		"volumes": {
			[]Topic{TopicVolumes},
			&command.RegisterVolume{Volume: volume("v4", claim.SingleNodeWriter)},
			true,
		},
		"another volume": {
			[]Topic{TopicVolume(ref("v3"))},
			&command.RegisterVolume{Volume: volume("v2", claim.SingleNodeWriter)}, false,
		},
		"releasing": {[]Topic{TopicReleasing}, &command.EndWorkload{Ref: workload("w1")}, true},
		"a start": {
			[]Topic{TopicReleasing},
			&command.StartWorkload{
				Ref: workload("new"), Node: "n",
				Claims: []claim.Claim{wanted("v0", claim.MultiNodeMultiWriter, claim.Read)},
			}, false,
		},
		"any of several": {
			[]Topic{TopicDrivers, TopicClaims(ref("v1"))},
			&command.AdvanceClaims{Items: []command.Advance{{
				Volume: ref("v1"), Workload: workload("w0"),
				To: claim.Freed,
			}}}, true,
		},
		"the end awaited": {[]Topic{TopicWorkload(workload("w2"))}, &command.EndWorkload{Ref: workload("w2")}, true},
		"the same again": {
			[]Topic{TopicNodes, TopicNode("n"), TopicDrivers},
			&command.PutNode{Node: claim.Node{
				Name: "n",
				Drivers: map[string]claim.NodeDriver{"hostpath": {
					ID: "hostpath", Type: claim.Monolith, Healthy: true,
					Topology: map[string]string{"rack": "1"}, UpdatedAt: now,
				}},
			}}, false,
		},
		"a node's driver": {
			[]Topic{TopicDriver("local")},
			&command.PutNode{Node: claim.Node{
				Name:    "m",
				Drivers: map[string]claim.NodeDriver{"local": {ID: "local", Type: claim.Monolith}},
			}}, true,
		},
		"a refusal": {[]Topic{TopicVolumes, TopicWorkloads}, &command.RegisterVolume{}, false},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		c := l.Watch(ctx, row.topics...)
		_, _ = l.do(row.command)
		if fired(c) != row.fires {
			t.Errorf("%s: fired is %v", name, !row.fires)
		}
		cancel()
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Fatalf("%s: not closed when the context ended", name)
		}
	}
	l.watchers.mu.Lock()
	defer l.watchers.mu.Unlock()
	if len(l.watchers.waiting) != 0 {
		t.Errorf("still waiting: %v", l.watchers.waiting)
	}
}
