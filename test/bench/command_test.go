package bench

import (
	"io"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testbin"
)

// measureCommands runs whole programs, from their fork to their end.
func measureCommands(b *testing.B, r *table.Section) {
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
	hello, imports := helloWorld(b, "hello", h.Path("hello")), helloWorld(b, "imports", h.Path("imports"))
	client := testbin.Client(b)
	b.Setenv("PANNIER_ADDR", "unix://"+h.Socket())
	var bare, importing, version, runs table.Samples
	for n := range measure.Turns(warmUp+turns, 20*time.Second) {
		if n == warmUp {
			bare, importing, version, runs = nil, nil, nil, nil
		}
		bare = append(bare, ran(b, exec.Command(hello)))
		importing = append(importing, ran(b, exec.Command(imports)))
		version = append(version, ran(b, exec.Command(client, "version")))
		runs = append(runs, ran(b, exec.Command(client, "workload", "run", spec, "--", "true")))
	}
	r.Add(
		bare.Row("a hello world in Go, p50", 0.5),
		version.Row("pannier version, p50", 0.5),
		table.Over("ratio to the hello world", version.Row("", 0.5), bare.Row("", 0.5)).Most(2),
		table.Over("the same of a program that only imports what the client must", importing.Row("", 0.5), bare.Row("", 0.5)),
		runs.Row("pannier workload run -- true, with one volume, p50", 0.5).Most(40),
	)
}

// helloWorld builds a program of testdata to compare with, and returns its path.
func helloWorld(b *testing.B, name, program string) string {
	b.Helper()
	source := filepath.Join("testdata", name, "main.go")
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
