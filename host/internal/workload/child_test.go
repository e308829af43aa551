package workload

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// envChild makes the test binary a host that will be killed.
const envChild = "WORKLOAD_TEST_CHILD"

// child is the job of that host: it starts spec, stops it if requested, and blocks forever at a label.
type child struct {
	Dir   string
	Spec  Spec
	Stop  bool
	Label string // empty: once the workload runs
}

const reached = "reached"

func beChild(arg string) {
	fatal := func(format string, args ...any) {
		fmt.Printf(format+"\n", args...)
		os.Exit(1)
	}
	var c child
	if err := json.Unmarshal([]byte(arg), &c); err != nil {
		fatal("%v", err)
	}
	h, err := openHost(c.Dir, &hooks{}, fatal)
	if err != nil {
		fatal("%v", err)
	}
	hang := func(context.Context) error {
		fmt.Println(reached)
		select {}
	}
	h.on(c.Label, 1, hang)
	ctx := context.Background()
	if _, err := h.Open(ctx); err != nil {
		fatal("%v", err)
	}
	if _, err := h.Start(ctx, c.Spec, Options{}); err != nil {
		fatal("%v", err)
	}
	if c.Stop {
		_, err := h.Stop(ctx, c.Spec.WorkloadRef, "the test stops it", nil)
		fatal("it never came by %s: %v", c.Label, err)
	}
	_ = hang(ctx)
}

// killed runs a child until it hangs, and kills it there.
func (c child) killed(t *testing.T) {
	t.Helper()
	arg, err := json.Marshal(c)
	check.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envChild+"="+string(arg))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	check.NoError(t, err)
	check.NoError(t, cmd.Start())
	line := bufio.NewScanner(out)
	line.Scan()
	said := line.Text()
	check.NoError(t, cmd.Process.Kill()) // SIGKILL
	_ = cmd.Wait()
	if said != reached {
		t.Fatalf("the child said %q", said)
	}
}
