// Package badprograms puts programs that are no good in the place of a good one that serves. Whoever runs programs from
// files, plugins or drivers, must go on with the good one, say what is wrong, and take the next good one.
package badprograms

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/check"
)

// Host runs a program from a file, and serves with it.
type Host struct {
	File  string
	Good  func(version string) []byte // a program that reports this version
	Dies  []byte                      // one that prints Words and ends
	Words string
	Hangs []byte // one that never comes up
	// Serves returns the process that serves and its version, or 0 if none does.
	Serves func() (pid int, version string)
	// Says returns what is wrong with the file, or with what was tried last; empty: nothing.
	Says func() string
}

const words = "WORDS" // stands for Host.Words

// cases spoil the file of a host.
var cases = map[string]struct {
	spoil func(t *testing.T, h Host)
	says  string
}{
	"ends at once": {func(t *testing.T, h Host) {
		text, err := os.ReadFile("/bin/false")
		check.NoError(t, err)
		h.put(t, text, 0o755)
	}, "exit status 1"},
	"says why it ends": {func(t *testing.T, h Host) { h.put(t, h.Dies, 0o755) }, words},
	"never comes up":   {func(t *testing.T, h Host) { h.put(t, h.Hangs, 0o755) }, "it is not up after"},
	"is empty":         {func(t *testing.T, h Host) { h.put(t, nil, 0o755) }, "exec format error"},
	"is for another machine": {func(t *testing.T, h Host) {
		text := h.Good("2.0.0")
		copy(text[18:], []byte{0xf3, 0}) // RISC-V (elf(5), e_machine)
		h.put(t, text, 0o755)
	}, "exec format error"},
	"is half there": {func(t *testing.T, h Host) {
		text := h.Good("2.0.0")
		h.put(t, text[:len(text)/2], 0o755)
	}, "it is incomplete"},
	"was half written over the good one": {func(t *testing.T, h Host) {
		text := h.Good("2.0.0")
		check.NoError(t, os.WriteFile(h.File, text[:len(text)/2], 0)) // in place
	}, "it is incomplete"},
	"may not be run":         {func(t *testing.T, h Host) { h.put(t, h.Good("2.0.0"), 0o644) }, "chmod a+x"},
	"can be changed by all":  {func(t *testing.T, h Host) { h.put(t, h.Good("2.0.0"), 0o777) }, "chmod"},
	"is gone":                {func(t *testing.T, h Host) { check.NoError(t, os.Remove(h.File)) }, "no such file"},
	"is a link that is torn": {torn, "no such file"},
}

func torn(t *testing.T, h Host) {
	t.Helper()
	check.NoError(t, os.Symlink("/nowhere", h.File+".tmp"))
	check.NoError(t, os.Rename(h.File+".tmp", h.File))
}

// Run runs all cases, each with a host that serves a good program.
func Run(t *testing.T, start func(t *testing.T) Host) {
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := start(t)
			pid, _ := h.Serves()
			c.spoil(t, h)
			says := strings.Replace(c.says, words, h.Words, 1)
			check.Eventually(t, "it is said: "+says, func() bool { return strings.Contains(h.Says(), says) })
			if now, _ := h.Serves(); now != pid || pid == 0 {
				t.Errorf("process %d serves, and %d has served: %s", now, pid, h.Says())
			}
			h.next(t, pid)
		})
	}
	t.Run("is being written", func(t *testing.T) {
		h := start(t)
		pid, _ := h.Serves()
		text := h.Good("9.9.9")
		hole := len(text) / 4 // in the code: the size and the headers are right
		f, err := os.OpenFile(h.File, os.O_WRONLY|os.O_TRUNC, 0)
		check.NoError(t, err)
		defer f.Close()
		write := func(from, to int) {
			t.Helper()
			_, err := f.WriteAt(text[from:to], int64(from))
			check.NoError(t, err)
		}
		write(0, hole)
		write(hole+1<<20, len(text))
		time.Sleep(2 * time.Second)
		if now, version := h.Serves(); now != pid || h.Says() != "" {
			t.Errorf("process %d of version %s serves, and %d has served: %s", now, version, pid, h.Says())
		}
		write(hole, len(text))
		check.NoError(t, f.Close())
		h.took(t, pid)
	})
}

// next puts a good program into the file, which takes over.
func (h Host) next(t *testing.T, pid int) {
	t.Helper()
	h.put(t, h.Good("9.9.9"), 0o755)
	h.took(t, pid)
}

func (h Host) took(t *testing.T, pid int) {
	t.Helper()
	check.Eventually(t, "the next good program serves", func() bool {
		now, version := h.Serves()
		return now != 0 && now != pid && version == "9.9.9"
	})
}

// put replaces the file.
func (h Host) put(t *testing.T, text []byte, mode os.FileMode) {
	t.Helper()
	_ = os.Remove(h.File + ".tmp")
	check.NoError(t, os.WriteFile(h.File+".tmp", bytes.Clone(text), 0o600))
	check.NoError(t, os.Chmod(h.File+".tmp", mode))
	check.NoError(t, os.Rename(h.File+".tmp", h.File))
}
