package drivers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/test/lib/check"
)

// twice opens a driver in use of which two processes may run.
func twice(t *testing.T, change func(*Spec)) (h *host, file string, spec Spec) {
	t.Helper()
	dataDir := shortDir(t)
	file = filepath.Join(dataDir, "a-driver")
	install(t, file, "1.0", false)
	spec = supervised("a")
	spec.Command = []string{file, "a-csi-driver", "-endpoint", "unix://" + filepath.Join(dataDir, "csi", "a", "csi.sock")}
	spec.Overlap = true
	if change != nil {
		change(&spec)
	}
	h = newHost(t, dataDir)
	h.setUsers(heldBy)
	h.open(spec)
	h.version("1.0")
	return h, file, spec
}

// publish makes a call that takes until a file exists, on a connection of its own.
func publish(ctx context.Context, d Driver, until string) error {
	conn, err := grpc.NewClient(d.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = csi.NewNodeClient(conn).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: until})
	return err
}

// underCalls makes calls until stop, which returns how many there were.
func (h *host) underCalls() (stop func() (n int)) {
	ctx, cancel := context.WithCancel(h.t.Context())
	var wg sync.WaitGroup
	var n int
	wg.Go(func() {
		for ctx.Err() == nil {
			d, err := h.Get("a")
			if err == nil && !d.Healthy {
				err = errors.New(d.Message)
			}
			if err == nil {
				err = publish(h.t.Context(), d, h.dataDir)
			}
			if err != nil {
				h.t.Errorf("a call failed: %v", err)
				return
			}
			n++
		}
	})
	return func() int { cancel(); wg.Wait(); return n }
}

// running lists the processes of the driver's program.
func running(t *testing.T, h *host) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	check.NoError(t, err)
	for _, exe := range all {
		target, _ := os.Readlink(exe)
		var pid int
		fmt.Sscanf(exe, "/proc/%d/exe", &pid)
		if strings.HasPrefix(target, h.dataDir+"/drivers/a/") && alive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (h *host) onlyRuns(pid int) {
	h.t.Helper()
	var now []int
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if now = running(h.t, h); len(now) == 1 && now[0] == pid {
			return
		}
	}
	h.t.Errorf("processes %v run, want %d alone", now, pid)
}

// A new program that is slow to start takes over next to the old one: no call fails, none waits for the start, and one
// that is in flight ends in the old process.
func TestProgramTakesOverBesideTheOld(t *testing.T) {
	h, file, _ := twice(t, nil)
	first, err := h.Get("a")
	check.NoError(t, err)
	calls := h.underCalls()
	for n, version := range []string{"2.0", "3.0"} {
		install(t, file, "slow "+version, false)
		end := filepath.Join(h.dataDir, "end-"+version)
		inFlight := make(chan error, 1)
		go func() { inFlight <- publish(t.Context(), first, end) }()
		check.Eventually(t, "it is tried", func() bool { return len(h.happened("trying")) > n })
		for range 20 {
			check.NoError(t, publish(t.Context(), first, h.dataDir))
		}
		check.NoError(t, os.WriteFile(filepath.Join(h.dataDir, version), nil, 0o600))
		next := h.version(version)
		for range 10 { // as often as the process that was replaced is looked at, it has a call in flight
			if next.PID == first.PID || !alive(first.PID) {
				t.Fatalf("%+v follows %+v, which is alive: %v", next, first, alive(first.PID))
			}
			time.Sleep(drainEvery)
		}
		check.NoError(t, os.WriteFile(end, nil, 0o600))
		check.NoError(t, <-inFlight)
		h.onlyRuns(next.PID)
		s := next.Swaps[len(next.Swaps)-1]
		if !s.Overlap || s.Error != "" || s.Rollback || s.Took <= 0 || s.From.SHA256 != first.Program ||
			s.To.SHA256 != next.Program {
			t.Errorf("recorded %+v", s)
		}
		first = next
	}
	calls()
	h.mustNotHaveHappened("unhealthy")
	if first.Restarts != 2 || first.CrashLoop {
		t.Errorf("got %+v", first)
	}
	// A crash is followed by a start of the same program, and the endpoint leads to it.
	check.NoError(t, syscall.Kill(first.PID, syscall.SIGKILL))
	again := h.wait("a", "started again", func(d Driver) bool { return d.Healthy && d.PID != first.PID })
	check.NoError(t, publish(t.Context(), again, h.dataDir))
	install(t, file, "5.0", false)
	h.onlyRuns(h.version("5.0").PID)
}

// A new program that is no good is refused, and nobody notices.
func TestBadProgramBesideTheOld(t *testing.T) {
	for trailer, want := range map[string]string{
		"not ready":  "not ready",
		"steal":      "it does not listen on",
		"other name": `provider "other.example.com", not "test.example.com"`,
		"no stats":   "node VolumeStats false, not true",
	} {
		t.Run(trailer, func(t *testing.T) {
			h, file, spec := twice(t, func(s *Spec) {
				if trailer == "not ready" || trailer == "steal" { // the others do not last until then
					s.HealthTimeout = 15 * time.Second
				}
			})
			first, err := h.Get("a")
			check.NoError(t, err)
			calls := h.underCalls()
			if trailer == "steal" {
				calls() // new callers find a process that takes the endpoint
			}
			install(t, file, trailer, false)
			d := h.wait("a", "refused", func(d Driver) bool { return len(d.Swaps) > 0 })
			s := d.Swaps[0]
			if d.PID != first.PID || !d.Healthy || !s.Overlap || s.Took <= 0 || s.From.SHA256 != first.Program ||
				!strings.Contains(s.Error, want) || !strings.Contains(d.ProgramProblem, "is refused") {
				t.Errorf("got %+v, want %q", d, want)
			}
			if n := calls(); n == 0 && trailer != "steal" {
				t.Error("no call was made")
			}
			check.NoError(t, publish(t.Context(), d, h.dataDir))
			h.onlyRuns(first.PID)
			h.mustNotHaveHappened("unhealthy")
			h.mustHaveHappened("trying", "refused")

			// The next host does not try it again.
			check.NoError(t, h.Close(false))
			again := newHost(t, h.dataDir)
			again.setUsers(heldBy)
			again.open(spec)
			d = again.wait("a", "looked at", func(d Driver) bool { return d.Healthy && d.ProgramProblem != "" })
			if d.PID != first.PID || !strings.Contains(d.ProgramProblem, "was refused") {
				t.Errorf("got %+v", d)
			}
			install(t, file, "2.0", false)
			again.onlyRuns(again.version("2.0").PID)
		})
	}
}

// A program that took over and then ends again and again is rolled back.
func TestProgramThatTookOverIsRolledBack(t *testing.T) {
	h, file, _ := twice(t, nil)
	first, err := h.Get("a")
	check.NoError(t, err)
	install(t, file, "die later", false)
	h.mayDie(first.Program)
	d := h.wait("a", "rolled back", func(d Driver) bool {
		n := len(d.Swaps)
		return n > 0 && d.Swaps[n-1].Rollback && d.Healthy && d.Program == first.Program
	})
	h.onlyRuns(d.PID)
	if s := d.Swaps[0]; len(d.Swaps) != 2 || !s.Overlap || s.Error != "" {
		t.Errorf("recorded %+v", d.Swaps)
	}
	h.wait("a", "timed", func(d Driver) bool { return d.Swaps[1].Took > 0 })
}

// The host is killed while a new process is tried, and while an old one has calls left: the next host leaves one.
func TestKillOfTheHostWithTwoProcesses(t *testing.T) {
	for name, trailer := range map[string]string{"while one is tried": "hang", "while one ends": "2.0"} {
		t.Run(name, func(t *testing.T) {
			// The next host tries the program that hangs once more.
			h, file, spec := twice(t, func(s *Spec) { s.HealthTimeout = 3 * time.Second })
			first, err := h.Get("a")
			check.NoError(t, err)
			check.NoError(t, h.Close(false))
			cmd := hostProcess(t, h.dataDir, spec)
			ctx, cancel := context.WithCancel(t.Context())
			inFlight := make(chan error, 1)
			go func() { inFlight <- publish(ctx, first, "never") }()
			t.Cleanup(func() { cancel(); <-inFlight })
			install(t, file, trailer, false)
			rec := awaitRecord(t, h, func(r record) bool {
				return pidOf(beside(r)) != 0 && (trailer == "hang") == (pidOf(r.Current()) == first.PID)
			})
			check.NoError(t, cmd.Process.Kill())
			cmd.Wait()
			if now := running(t, h); len(now) != 2 {
				t.Fatalf("processes %v run", now)
			}
			check.NoError(t, os.Remove(filepath.Join(h.dataDir, "csi", "a", "csi.sock"))) // as if that had not been reached
			again := newHost(t, h.dataDir)
			again.setUsers(heldBy)
			again.open(spec)
			d := again.healthy("a")
			if d.PID != pidOf(rec.Current()) {
				t.Errorf("got %+v, want %+v", d, rec.Current())
			}
			again.onlyRuns(d.PID)
			check.NoError(t, publish(t.Context(), d, h.dataDir))
			install(t, file, "3.0", false)
			d = again.version("3.0")
			cancel() // the call in flight
			again.onlyRuns(d.PID)
		})
	}
}

// beside returns the process next to the one that serves, or nil.
func beside(r record) *managed.Run {
	for _, run := range r.Runs {
		if run != r.Current() {
			return run
		}
	}
	return nil
}

func pidOf(run *managed.Run) int {
	if run == nil || run.Process == nil {
		return 0
	}
	return run.Process.PID
}

func awaitRecord(t *testing.T, h *host, is func(record) bool) (r record) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if r, err = loadRecord(recordPath(h.dataDir, "a"), "a"); err == nil && is(r) {
			return r
		}
	}
	t.Fatalf("recorded is %+v, %v", r, err)
	return r
}

// What is ended with the host, or deregistered, leaves no process and no link.
func TestEndWithTwoProcesses(t *testing.T) {
	h, file, _ := twice(t, nil)
	install(t, file, "hang", false)
	awaitRecord(t, h, func(r record) bool { return pidOf(beside(r)) != 0 })
	check.NoError(t, h.Close(false))
	if now := running(t, h); len(now) != 1 {
		t.Errorf("processes %v run", now)
	}
	again := newHost(t, h.dataDir) // the driver is not declared any more
	again.open()
	again.waitGone("a")
	if now := running(t, h); len(now) != 0 {
		t.Errorf("processes %v run", now)
	}
	if left, _ := os.ReadDir(filepath.Join(h.dataDir, "csi", "a")); len(left) > 0 {
		t.Errorf("left is %v", left)
	}
}

// A process that serves file systems in use has no process beside it; nor has one that listens on the endpoint itself.
func TestNoProcessBeside(t *testing.T) {
	t.Run("it serves mounts", func(t *testing.T) {
		if _, err := os.Stat("/dev/fuse"); err != nil {
			t.Skipf("needs /dev/fuse (%v); not covered: a driver that serves mounts when its program changes", err)
		}
		h, file, _ := twice(t, func(s *Spec) { s.Command = append(s.Command, "-fuse") })
		install(t, file, "2.0", false)
		d := h.wait("a", "looked at", func(d Driver) bool { return d.ProgramProblem != "" })
		if !strings.Contains(d.ProgramProblem, "serves file systems") {
			t.Errorf("got %+v", d)
		}
		h.mustNotHaveHappened("trying")
		h.setUsers()
		h.onlyRuns(h.version("2.0").PID)
	})
	t.Run("it listens on the endpoint", func(t *testing.T) {
		h, file, spec := programmed(t)
		check.NoError(t, h.Close(false))
		spec.Overlap = true
		again := newHost(t, h.dataDir)
		again.setUsers(heldBy)
		again.open(spec)
		again.healthy("a")
		install(t, file, "2.0", false)
		if d := again.version("2.0"); d.Swaps[0].Overlap {
			t.Errorf("got %+v", d.Swaps)
		}
		again.mustNotHaveHappened("trying")
		install(t, file, "3.0", false)
		if d := again.version("3.0"); !d.Swaps[1].Overlap { // CSI_ENDPOINT had the process's own socket
			t.Errorf("got %+v", d.Swaps)
		}
	})
}

func TestOwnSocket(t *testing.T) {
	s := Spec{
		Endpoint: "unix:///run/x/csi.sock",
		Command: []string{
			"/run/x/csi.sock", "--endpoint=unix:///run/x/csi.sock", "/run/x/csi.sock", "/run/x/csi.sock.d/conf",
			"/chroot/run/x/csi.sock", "a=/run/x/csi.sock,b=/run/x/csi.sock",
		},
		Env: map[string]string{"A": "tcp,unix:/run/x/csi.sock", "B": "file:///run/x/csi.sock"},
	}
	got := s.on("/run/x/csi.sock.2")
	want := []string{
		"/run/x/csi.sock", "--endpoint=unix:///run/x/csi.sock.2", "/run/x/csi.sock.2", "/run/x/csi.sock.d/conf",
		"/chroot/run/x/csi.sock", "a=/run/x/csi.sock.2,b=/run/x/csi.sock.2",
	}
	if !slices.Equal(got.Command, want) || got.Endpoint != "unix:///run/x/csi.sock.2" ||
		got.Env["A"] != "tcp,unix:/run/x/csi.sock.2" || got.Env["B"] != "file:///run/x/csi.sock" {
		t.Errorf("got %+v", got)
	}
	if s.Command[2] != "/run/x/csi.sock" || s.Env["A"] != "tcp,unix:/run/x/csi.sock" {
		t.Errorf("changed to %+v", s)
	}
}
