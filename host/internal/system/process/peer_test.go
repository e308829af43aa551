package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// envPeer makes the test binary connect to a socket, and leave the connection to a child when its input ends.
const envPeer = "PROCESS_TEST_PEER"

func bePeer(path string) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		panic(err)
	}
	file, err := conn.(*net.UnixConn).File()
	if err != nil {
		panic(err)
	}
	heir := exec.Command("/bin/cat") // until the other end is closed
	heir.Stdin = file
	if err := heir.Start(); err != nil {
		panic(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// A connection may outlive the process that made it, whose PID the kernel gives to another one: that is never taken for
// the peer, whether it was looked at before or after.
func TestPIDOfAPeerIsReused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	peer := exec.Command(os.Args[0])
	peer.Env = append(os.Environ(), envPeer+"="+path)
	input, err := peer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := peer.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	before, err := AtSocket(conn.(*net.UnixConn))
	if err != nil || before.Process.PID != peer.Process.Pid || !before.Process.Lives() {
		t.Fatalf("the peer is %+v, %v; want process %d", before, err, peer.Process.Pid)
	}
	if err := errors.Join(input.Close(), peer.Wait()); err != nil {
		t.Fatal(err)
	}
	victim := withPID(t, before.Process)
	if p, err := Find(context.Background(), before.Process); !errors.Is(err, ErrGone) || before.Process.Lives() {
		t.Errorf("process %d is found for the peer that has ended: %v", p.PID(), err)
		p.Release()
	}
	after, err := AtSocket(conn.(*net.UnixConn))
	if err != nil || after.Pid != before.Pid || after.Process.PID != 0 {
		t.Errorf("the peer that has ended is %+v, %v; that is %q", after, err, victim.Path)
	}
}

// withPID starts a process with the PID of one that has ended, in a later tick of the kernel's clock: within one tick
// not even root can use up all other PIDs.
func withPID(t *testing.T, ended Ref) *exec.Cmd {
	t.Helper()
	for range 1000 {
		err := os.WriteFile("/proc/sys/kernel/ns_last_pid", fmt.Append(nil, ended.PID-1), 0)
		if err != nil {
			t.Skipf("PIDs cannot be chosen: %v", err)
		}
		cmd := exec.Command("/bin/sleep", "1000")
		cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if st, err := procfs.ReadStat(procfs.Dir(ended.PID)); err == nil && cmd.Process.Pid == ended.PID &&
			st.StartTime != ended.StartTime {
			t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
			return cmd
		}
		_, _ = cmd.Process.Kill(), cmd.Wait()
	}
	t.Fatalf("PID %d is not free", ended.PID)
	return nil
}
