package bench

import (
	"io"
	"os/exec"
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
	hello := helloWorld(b, h.Path("hello"))
	client := testbin.Build(b, "host/cmd/pannier")
	b.Setenv("PANNIER_ADDR", "unix://"+h.Socket())
	var bare, version, runs table.Samples
	for n := range measure.Turns(warmUp+turns, 20*time.Second) {
		if n == warmUp {
			bare, version, runs = nil, nil, nil
		}
		bare = append(bare, ran(b, exec.Command(hello)))
		version = append(version, ran(b, exec.Command(client, "version")))
		runs = append(runs, ran(b, exec.Command(client, "workload", "run", spec, "--", "true")))
	}
	r.Add(
		bare.Row("a hello world in Go, p50", 0.5),
		version.Row("pannier version, p50", 0.5),
		table.Over("ratio to the hello world", version.Row("", 0.5), bare.Row("", 0.5)).Most(4),
		runs.Row("pannier workload run -- true, with one volume, p50", 0.5).Most(40),
	)
}

// helloWorld builds the program to compare with, and returns its path.
func helloWorld(b *testing.B, program string) string {
	b.Helper()
	const source = "testdata/hello/main.go"
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
