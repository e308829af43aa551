package drivers

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/badprograms"
	"github.com/pannier/pannier/test/lib/check"
)

// install writes the test's driver to a file, with a trailer that says how it behaves (see driverMain). In place: the
// file is overwritten instead of replaced.
func install(t *testing.T, file, trailer string, inPlace bool) {
	t.Helper()
	data := withTrailer(t, trailer)
	if inPlace {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
		check.NoError(t, err)
		_, err = f.Write(data)
		check.NoError(t, err)
		check.NoError(t, f.Close())
		return
	}
	check.NoError(t, os.WriteFile(file+".tmp", data, 0o755)) //nolint:gosec // it is a program
	check.NoError(t, os.Rename(file+".tmp", file))
}

func withTrailer(t *testing.T, trailer string) []byte {
	t.Helper()
	self, err := os.Executable()
	check.NoError(t, err)
	data, err := os.ReadFile(self)
	check.NoError(t, err)
	return append(data, "\n#trailer "+trailer+"\n"...)
}

// programmed opens a driver in use whose program is a file of its own.
func programmed(t *testing.T, args ...string) (h *host, file string, spec Spec) {
	t.Helper()
	dataDir := shortDir(t)
	file = filepath.Join(dataDir, "a-driver")
	install(t, file, "1.0", false)
	spec = supervised("a", args...)
	spec.Command[0] = file
	h = newHost(t, dataDir)
	h.setUsers(heldBy)
	h.open(spec)
	if d := h.healthy("a"); d.Fingerprint.Version != "1.0" || d.Program == "" {
		t.Fatalf("got %+v", d)
	}
	return h, file, spec
}

func (h *host) version(want string) Driver {
	h.t.Helper()
	return h.wait("a", "version "+want, func(d Driver) bool { return d.Healthy && d.Fingerprint.Version == want })
}

// A program that is overwritten in place does not disturb its process, and takes over, also if no host ran meanwhile.
func TestChangedProgramTakesOver(t *testing.T) {
	h, file, spec := programmed(t)
	first, err := h.Get("a")
	check.NoError(t, err)
	install(t, file, "2.0", true)
	second := h.version("2.0")
	if second.PID == first.PID || second.Program == first.Program || second.Restarts != 1 || second.CrashLoop {
		t.Errorf("%+v follows %+v", second, first)
	}
	if n := len(second.Swaps); n != 1 || second.Swaps[0].From.SHA256 != first.Program ||
		second.Swaps[0].To.SHA256 != second.Program {
		t.Errorf("swaps: %+v", second.Swaps)
	}
	check.NoError(t, h.Close(false))
	install(t, file, "3.0", false)
	again := newHost(t, h.dataDir)
	again.setUsers(heldBy)
	again.open(spec)
	third := again.version("3.0")
	if third.PID == second.PID || len(third.Swaps) != 2 {
		t.Errorf("%+v follows %+v", third, second)
	}
	check.Eventually(t, "two copies are kept", func() bool {
		entries, err := os.ReadDir(filepath.Join(h.dataDir, "drivers", "a"))
		return err == nil && len(entries) == 2
	})
	// What kills the process has the same program started again, from its copy, even without its file.
	check.NoError(t, os.Remove(file))
	check.NoError(t, syscall.Kill(third.PID, syscall.SIGKILL))
	fourth := again.wait("a", "started again", func(d Driver) bool { return d.Healthy && d.PID != third.PID })
	if !strings.Contains(fourth.ProgramProblem, "no such file") {
		t.Errorf("the file is gone: %+v", fourth)
	}
}

// mayDie lets a program end once it has taken over from another one.
func (h *host) mayDie(from string) {
	h.t.Helper()
	h.wait("a", "another program", func(d Driver) bool { return d.Healthy && len(d.Swaps) == 1 && d.Program != from })
	check.NoError(h.t, os.WriteFile(filepath.Join(h.dataDir, "may-die"), nil, 0o600))
}

// A program that does not get healthy, or ends again and again, is refused, and the one before it runs again. It is
// tried again when an operator asks for it.
func TestBrokenProgramIsRolledBack(t *testing.T) {
	for _, broken := range []string{"die", "die later"} {
		t.Run(broken, func(t *testing.T) {
			h, file, spec := programmed(t)
			first, err := h.Get("a")
			check.NoError(t, err)
			install(t, file, broken, true)
			if broken == "die later" {
				h.mayDie(first.Program)
			}
			rolledBack := func(d Driver) bool {
				n := len(d.Swaps)
				return d.Healthy && d.Program == first.Program && n > 0 && d.Swaps[n-1].Rollback
			}
			second := h.wait("a", "rolled back", rolledBack)
			why := second.Swaps[len(second.Swaps)-1].Why
			if second.Fingerprint.Version != "1.0" || !strings.Contains(why, "exit status") ||
				broken == "die" && !strings.Contains(why, "this build is broken") {
				t.Errorf("%+v follows %+v", second, first)
			}
			h.mustHaveHappened("swapped", "rolled-back", "healthy")

			// The next host does not try it again.
			check.NoError(t, h.Close(false))
			again := newHost(t, h.dataDir)
			again.setUsers(heldBy)
			again.open(spec)
			d := again.wait("a", "looked at", func(d Driver) bool { return d.Healthy && d.ProgramProblem != "" })
			if d.PID != second.PID || !strings.Contains(d.ProgramProblem, "was refused") {
				t.Errorf("%+v follows %+v", d, second)
			}
			install(t, file, "2.0", false)
			if d := again.version("2.0"); d.ProgramProblem != "" {
				t.Errorf("got %+v", d)
			}
		})
	}
}

// What is wrong with a program does not end the one that serves (package badprograms).
func TestBadPrograms(t *testing.T) {
	badprograms.Run(t, func(t *testing.T) badprograms.Host {
		h, file, _ := twice(t, func(s *Spec) { s.HealthTimeout = 5 * time.Second })
		return badprograms.Host{
			File: file, Good: func(version string) []byte { return withTrailer(t, version) },
			Dies: withTrailer(t, "die"), Words: "this build is broken", Hangs: withTrailer(t, "hang"),
			Serves: func() (int, string) {
				d, err := h.Get("a")
				if err != nil || !d.Healthy {
					return 0, ""
				}
				return d.PID, d.Fingerprint.Version
			},
			Says: func() string {
				d, _ := h.Get("a")
				return d.ProgramProblem
			},
		}
	})
}

// A process that serves file systems in use is replaced when they are not in use any more.
func TestProgramThatServesMountsWaits(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("needs /dev/fuse (%v); not covered: a driver that serves mounts when its program changes", err)
	}
	h, file, _ := programmed(t, "-fuse")
	first, err := h.Get("a")
	check.NoError(t, err)
	install(t, file, "2.0", false)
	d := h.wait("a", "looked at", func(d Driver) bool { return d.ProgramProblem != "" || d.PID != first.PID })
	if d.PID != first.PID || !strings.Contains(d.ProgramProblem, "serves file systems") {
		t.Errorf("%+v follows %+v", d, first)
	}
	h.setUsers()
	if d := h.version("2.0"); d.ProgramProblem != "" {
		t.Errorf("got %+v", d)
	}
}
