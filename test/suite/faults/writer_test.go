package faults

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// writes is the first argument of this program when it runs as a workload's program. A file and the writer's
// name follow. It is also the name of that file.
const writes = "writes"

// boottime returns CLOCK_BOOTTIME in nanoseconds. All hosts of a test share this clock, and leases use it.
func boottime() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

// write appends the time and the writer's name to a file in a loop.
func write(path, who string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if _, err := fmt.Fprintln(f, boottime(), who); err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// program is a workload that runs in the foreground and writes into its volume.
type program struct {
	t     *testing.T
	cmd   *exec.Cmd
	out   bytes.Buffer // read only after its end
	ended chan struct{}
	file  string // its path on the storage
	who   string
}

// run starts a program with a volume, and returns when it has written something.
func run(t *testing.T, c *testcluster.Cluster, on *testhost.Host, id, volume string) *program {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, ended: make(chan struct{}), file: filepath.Join(c.Data(on, volume), writes), who: on.Path(id)}
	p.cmd = on.Command("workload", "run", c.Workload(on, id, volume), "--", self, writes, "/srv/"+volume+"/"+writes, p.who)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.ended })
	on.Eventually("workload "+id+" writes", func() error {
		select {
		case <-p.ended:
			t.Fatalf("workload %s ended: %s", id, p.out.String())
		default:
		}
		if len(p.wrote()) == 0 {
			return errors.New("it has written nothing")
		}
		return nil
	})
	return p
}

// wrote returns the times at which the program wrote.
func (p *program) wrote() (at []int64) {
	p.t.Helper()
	text, err := os.ReadFile(p.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var when int64
		var who string
		if n, _ := fmt.Sscan(line, &when, &who); n == 2 && who == p.who {
			at = append(at, when)
		}
	}
	return at
}

// awaitEnd waits until the program has ended for any reason.
func (p *program) awaitEnd() {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(testhost.Wait):
		p.t.Fatalf("the program of %s has not ended", p.who)
	}
}
