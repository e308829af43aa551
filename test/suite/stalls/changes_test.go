package stalls

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// changes is a file system in front of a host's data directory. A process of its own serves it.
type changes struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

// mountChanges mounts it before the host is started.
func mountChanges(t *testing.T, path string) *changes {
	t.Helper()
	behind := path + ".behind"
	check.NoError(t, errors.Join(os.Mkdir(path, 0o700), os.Mkdir(behind, 0o700)))
	cmd := exec.Command(testbin.Build(t, "test/suite/fusedriver"), "changes")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check.NoError(t, err)
	out, err := cmd.StdoutPipe()
	check.NoError(t, err)
	check.NoError(t, cmd.Start())
	_, err = fmt.Fprintln(in, behind+"\n"+path) // not arguments: they would make it a process of the host
	check.NoError(t, err)
	c := &changes{t, in, bufio.NewScanner(out)}
	c.await("it serves")
	t.Cleanup(func() { // the host's end unmounts it
		c.set(0, 0)
		_ = in.Close()
		go func() { _ = cmd.Wait() }()
	})
	return c
}

// await reads an answer.
func (c *changes) await(line string) {
	c.t.Helper()
	if c.out.Scan(); c.out.Text() != line {
		c.t.Fatalf("the file system answers %q, not %q", c.out.Text(), line)
	}
}

// set makes all changes from now on fail, unless err is 0, and late.
func (c *changes) set(err syscall.Errno, late time.Duration) {
	c.t.Helper()
	line := fmt.Sprintf("%d %d", err, late.Milliseconds())
	_, _ = fmt.Fprintln(c.in, line)
	c.await(line)
}

// TestChangesFail: whatever a change of the data directory fails with, and however late it is.
func TestChangesFail(t *testing.T) {
	t.Parallel()
	var n tally
	t.Cleanup(func() { fmt.Println(&n) })
	for _, s := range []struct {
		err     syscall.Errno
		late    time.Duration
		lasting bool
	}{
		{err: syscall.EDQUOT},
		{err: syscall.ENOSPC},
		{err: syscall.EIO, lasting: true},
		{err: syscall.EROFS, lasting: true},
		{err: syscall.ESTALE, lasting: true},
		{late: 2 * time.Second},
	} {
		name, sees := "a change takes 2 s", ""
		if s.err != 0 {
			name, sees = "changes fail: "+s.err.Error(), s.err.Error()
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := prepareDriver(t, "", "docker-volume")
			c := mountChanges(t, r.h.Path("data"))
			r.h.Start()
			r.use()
			r.try(t, &n, stall{
				name: name, sees: sees, lasting: s.lasting,
				begin: func(*rig) func() {
					c.set(s.err, s.late)
					return func() { c.set(0, 0) }
				},
			}, false)
		})
	}
}
