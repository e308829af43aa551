package cluster_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
	"github.com/pannier/pannier/test/lib/testbin"
)

// newest returns the log file that was written last, and its content without the trailing zeros.
func newest(t *testing.T, h *clustertest.Host) (path string, written []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(h.Dir, "raft", "wal", "*.wal"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the files of the log: %v, %v", files, err)
	}
	path = slices.Max(files)
	data, err := os.ReadFile(path)
	check.NoError(t, err)
	return path, bytes.TrimRight(data, "\x00")
}

func overwrite(t *testing.T, path string, at int64, with []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	check.NoError(t, err)
	_, err = f.WriteAt(with, at)
	check.NoError(t, errors.Join(err, f.Close()))
}

func is(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// TestDamagedServers damages the files of a stopped server. It recovers everything from the others, and
// becomes a full server again.
func TestDamagedServers(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(t *testing.T, h *clustertest.Host) (aside bool){
		"the log is cut off": func(t *testing.T, h *clustertest.Host) (aside bool) {
			path, written := newest(t, h)
			overwrite(t, path, int64(len(written)/2), make([]byte, len(written)/2+8))
			return false
		},
		"a byte of the log is changed": func(t *testing.T, h *clustertest.Host) (aside bool) {
			path, written := newest(t, h)
			at := bytes.LastIndex(written, []byte("ext-v")) // not the last batch, but the one with the other volume
			at = bytes.LastIndex(written[:at], []byte("ext-v"))
			overwrite(t, path, int64(at), []byte("E"))
			return true
		},
		"a file of the log contains the name of another one": func(t *testing.T, h *clustertest.Host) (aside bool) {
			path, _ := newest(t, h)
			overwrite(t, path, 16, binary.LittleEndian.AppendUint64(nil, 1<<40))
			return true
		},
		"a file of the ledger is damaged": func(t *testing.T, h *clustertest.Host) (aside bool) {
			manifest, err := filepath.Glob(filepath.Join(h.Dir, "state", "*", "MANIFEST"))
			if err != nil || len(manifest) != 1 {
				t.Fatal(manifest, err)
			}
			overwrite(t, manifest[0], 12, []byte("damaged"))
			return false
		},
		"the log is gone": func(t *testing.T, h *clustertest.Host) (aside bool) {
			check.NoError(t, os.RemoveAll(filepath.Join(h.Dir, "raft")))
			return false
		},
		"all is gone": func(t *testing.T, h *clustertest.Host) (aside bool) {
			check.NoError(t, os.RemoveAll(h.Dir))
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := clustertest.Form(t, 3, clustertest.Options{})
			c.WaitVoters(t, names(c.Hosts())...)
			h := c.Follower(t)
			for i := range 19 {
				register(t, c.Client(), fmt.Sprint("v", i))
			}
			everywhere(t, c, "v18")
			register(t, c.Client(), "v19") // in a separate batch, which is the last one
			everywhere(t, c, "v19")
			h.Stop(t)
			aside := damage(t, h)
			register(t, c.Client(), "meanwhile")
			h.Start(t)
			if got := is(t, filepath.Join(h.Dir, "raft", "wal.damaged")); got != aside {
				t.Errorf("the log was set aside: %t", got)
			}
			c.WaitReady(t)
			for _, id := range []string{"v0", "v18", "v19", "meanwhile"} {
				everywhere(t, c, id)
			}
			clustertest.Eventually(t, "it votes", func() bool { return !is(t, filepath.Join(h.Dir, "raft", "abstains.json")) })
			clustertest.Eventually(t, h.Name+" leads", func() bool {
				return h.Leader() || c.WaitLeader(t).TransferLeadership(within(t), h.Name) == nil && h.Leader()
			})
			register(t, c.Client(), "then")
			everywhere(t, c, "then")
		})
	}
}

// TestVoteOfALostLog destroys the log of one of the two servers that acknowledged an entry. The third server,
// which lacks the entry, must not be elected with its vote.
func TestVoteOfALostLog(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, h *clustertest.Host){
		"all": func(t *testing.T, h *clustertest.Host) {
			check.NoError(t, os.RemoveAll(h.Dir))
		},
		"the end of the log": func(t *testing.T, h *clustertest.Host) {
			path, written := newest(t, h)
			overwrite(t, path, int64(len(written)/2), make([]byte, len(written)/2+8))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := clustertest.Form(t, 3, clustertest.Options{})
			c.WaitVoters(t, names(c.Hosts())...)
			for i := range 8 {
				register(t, c.Client(), fmt.Sprint("v", i))
			}
			everywhere(t, c, "v7")
			leader := c.WaitLeader(t)
			others := slices.DeleteFunc(slices.Clone(c.Hosts()), func(h *clustertest.Host) bool { return h == leader })
			lost, lags := others[0], others[1]
			lags.Stop(t)
			register(t, leader, "late")
			clustertest.Eventually(t, "two have it", func() bool { return has(t, lost.Node, "late") })
			lost.Stop(t)
			leader.Stop(t)
			lose(t, lost)
			lost.Start(t)
			lags.Start(t)
			for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				if l := c.Leader(); l != nil {
					t.Fatalf("%s leads with the vote of a server that has lost its log", l.Name)
				}
			}
			leader.Start(t)
			c.WaitReady(t)
			everywhere(t, c, "late")
			register(t, c.Client(), "later")
			everywhere(t, c, "later")
		})
	}
}

// TestFullDiskOfOneServer fills the disk of one of three servers, while it follows and while it leads. The
// cluster continues, and so does the server when space is free again.
func TestFullDiskOfOneServer(t *testing.T) {
	testbin.RequireRoot(t, "a full disk under the ledger")
	t.Parallel()
	disk := t.TempDir()
	check.NoError(t, syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=128m"))
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	c := clustertest.Prepare(t, 3, clustertest.Options{})
	full := c.Hosts()[0]
	full.Dir = filepath.Join(disk, "ledger")
	for _, h := range c.Hosts() {
		h.Start(t)
	}
	c.WaitReady(t)
	c.WaitVoters(t, names(c.Hosts())...)
	filler := filepath.Join(disk, "filler")
	big := volume("big")
	big.Context = map[string]string{"text": string(bytes.Repeat([]byte("x"), 32<<10))}

	clustertest.Eventually(t, full.Name+" leads", func() bool {
		return full.Leader() || c.WaitLeader(t).TransferLeadership(within(t), full.Name) == nil && full.Leader()
	})
	register(t, c.Client(), "a")
	leave(t, disk, filler, 32<<20)
	clustertest.Eventually(t, "another server leads", func() bool { l := c.Leader(); return l != nil && l != full })
	register(t, c.Client(), "b")
	everywhere(t, c, "b")
	if err := full.Stats().Full; !errors.Is(err, command.ErrDiskFull) {
		t.Errorf("the server returned %v", err)
	}

	leave(t, disk, filler, 0)
	for i := range 400 { // more than its disk has space for
		big.ID, big.ExternalID = fmt.Sprint("big", i), fmt.Sprint("ext-big", i)
		if _, err := cluster.Apply(within(t), c.Client(), &command.RegisterVolume{Volume: big}); err != nil {
			t.Fatal(err)
		}
	}
	if has(t, full.Node, "big399") {
		t.Error("a server with a full disk accepted an entry")
	}
	check.NoError(t, os.Remove(filler))
	everywhere(t, c, "big399")
	if err := full.Stats().Full; err != nil {
		t.Errorf("with free space the server returned %v", err)
	}
	register(t, c.Client(), "c")
	everywhere(t, c, "c")
}
