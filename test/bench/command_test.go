package bench

import (
	"io"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pannier/pannier/test/bench/table"
)

// measureCommands runs whole programs, from their fork to their end.
func measureCommands(b *testing.B, r *table.Report) {
	const turns = 40
	h := newHost(b)
	h.Start()
	caller{b, h.Client()}.create(b.Context(), "command")
	spec := h.Write("command.hcl", `workload "command" {
  volume "data" {
    source      = "command"
    destination = "`+h.Path("mnt")+`"
  }
}
`)
	hello := helloWorld(b, h.Path("hello"))
	var bare, version, runs table.Samples
	for n := range warmUp + turns {
		if n == warmUp {
			bare, version, runs = nil, nil, nil
		}
		bare = append(bare, ran(b, exec.Command(hello)))
		version = append(version, ran(b, h.Command("version")))
		runs = append(runs, ran(b, h.Command("workload", "run", spec, "--", "true")))
	}
	r.Add(
		table.Row{What: "a hello world in Go, p50", Value: bare.P50(), Unit: "ms"},
		table.Row{What: "pannier version, p50", Value: version.P50(), Unit: "ms"},
		table.Row{What: "ratio to the hello world", Value: version.P50() / bare.P50(), AtMost: 2},
		table.Row{What: "pannier workload run -- true, with one volume, p50", Value: runs.P50(), Unit: "ms", AtMost: 40},
	)
}

// helloWorld builds the smallest program to compare with, and returns its path.
func helloWorld(b *testing.B, dir string) string {
	b.Helper()
	source, program := filepath.Join("testdata", "hello", "main.go"), filepath.Join(dir, "hello")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, source).CombinedOutput(); err != nil {
		b.Fatalf("build %s: %v\n%s", source, err, out)
	}
	return program
}

// ran runs a command and returns how long it took.
func ran(b *testing.B, cmd *exec.Cmd) time.Duration {
	b.Helper()
	cmd.Stdout = io.Discard
	at := time.Now()
	if err := cmd.Run(); err != nil {
		b.Fatalf("%s: %v", cmd, err)
	}
	return time.Since(at)
}
