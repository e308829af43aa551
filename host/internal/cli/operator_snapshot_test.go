package cli

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster/backup"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// SaveSnapshot sends the fake's snapshot, or half of it.
func (f *fake) SaveSnapshot(_ context.Context, _ *hostv1.SaveSnapshotRequest,
	s *connect.ServerStream[hostv1.SaveSnapshotResponse],
) error {
	if f.slow != nil {
		<-f.slow
	}
	if f.broken() {
		return s.Send(&hostv1.SaveSnapshotResponse{Chunk: f.snapshot[:len(f.snapshot)/2]})
	}
	if err := s.Send(&hostv1.SaveSnapshotResponse{Chunk: f.snapshot}); err != nil {
		return err
	}
	return s.Send(&hostv1.SaveSnapshotResponse{Snapshot: &hostv1.SnapshotInfo{Index: 7, Size: 2048}})
}

func (f *fake) RestoreSnapshot(_ context.Context,
	s *connect.ClientStream[hostv1.RestoreSnapshotRequest],
) (*hostv1.RestoreSnapshotResponse, error) {
	var got bytes.Buffer
	for s.Receive() {
		got.Write(s.Msg().GetChunk())
	}
	b, err := backup.Inspect(&got)
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	return &hostv1.RestoreSnapshotResponse{Snapshot: &hostv1.SnapshotInfo{Index: b.Index}}, s.Err()
}

// hasLedger lets the fake have a ledger that can be saved.
func (f *fake) hasLedger(t *testing.T) backup.Backup {
	t.Helper()
	var saved bytes.Buffer
	b, err := clustertest.Start(t).Save(t.Context(), &saved)
	check.NoError(t, err)
	f.snapshot = saved.Bytes()
	return b
}

func TestSnapshotFiles(t *testing.T) {
	f := startFake(t)
	b := f.hasLedger(t)
	t.Setenv("PANNIER_ADDR", "unix://"+f.socket)
	dir := t.TempDir()
	run := func(want int, args ...string) (said string) {
		t.Helper()
		out, err := os.Create(filepath.Join(t.TempDir(), "out"))
		check.NoError(t, err)
		defer out.Close()
		if got := Main(Options{
			Args: append([]string{"operator", "snapshot"}, args...), Stdout: out,
			Stderr: out,
		}); got != want {
			t.Errorf("%q: exit code %d, want %d", args, got, want)
		}
		text, err := os.ReadFile(out.Name())
		check.NoError(t, err)
		return string(text)
	}
	file := filepath.Join(dir, "ledger.snap")
	f.breaks = 1
	run(ExitError, "save", file)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("an interrupted snapshot left %v, %v", left, err)
	}
	if said := run(ExitOK, "save", file); !strings.Contains(said, "at index 7, 2.0 KiB") {
		t.Errorf("it said %q", said)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	run(ExitRefused, "save", file)
	if said := run(ExitOK, "inspect", file); !strings.Contains(said, b.SHA256) {
		t.Errorf("it said %q", said)
	}
	if said := run(ExitUsage, "restore", file); !strings.Contains(said, "is lost, on every server") {
		t.Errorf("it said %q", said)
	}
	if said := run(ExitOK, "restore", "-yes", file); !strings.Contains(said, "restored the ledger") {
		t.Errorf("it said %q", said)
	}
	damaged := bytes.Clone(f.snapshot)
	damaged[len(damaged)-3] ^= 1
	bad := filepath.Join(dir, "bad.snap")
	check.NoError(t, os.WriteFile(bad, damaged, 0o600))
	for _, command := range [][]string{{"inspect"}, {"restore", "-yes"}} {
		if said := run(ExitUsage, append(command, bad)...); !strings.Contains(said, bad) {
			t.Errorf("%s said %q", command, said)
		}
		run(ExitNotFound, append(command, filepath.Join(dir, "nothing"))...)
	}
}
