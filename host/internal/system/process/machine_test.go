package process

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestMachineID starts this test in a PID namespace of its own, twice: each is another machine of the same boot.
func TestMachineID(t *testing.T) {
	const asked = "PANNIER_TEST_MACHINE_ID"
	id, err := MachineID()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(asked) != "" {
		_, _ = os.Stderr.WriteString(id)
		os.Exit(0)
	}
	if again, err := MachineID(); err != nil || again != id {
		t.Errorf("one process reads %s and %s: %v", id, again, err)
	}
	seen := map[string]bool{id: true}
	for range 2 {
		// A namespace of mounts with its own /proc: PID 1 is the namespace's.
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `mount -t proc proc /proc && exec "$0" -test.run '^TestMachineID$'`,
			os.Args[0])
		cmd.Env = append(os.Environ(), asked+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
		stderr := new(strings.Builder)
		cmd.Stderr = stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, stderr)
		}
		if other := stderr.String(); other == "" || seen[other] {
			t.Errorf("a process in another PID namespace is on the machine %q, seen before: %v", other, seen)
		}
		seen[stderr.String()] = true
	}
}
