package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"text/template"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"
)

// A template is a program of whoever configures a proxy, and may loop forever or ask for any memory. A child process
// runs it, with these bounds: the kernel ends it at the first two.
const (
	maxSeconds = 2         // of CPU
	maxMemory  = 256 << 20 // bytes that the child may map, the Go runtime's included
	maxOutput  = 1 << 20   // bytes
)

// renderers bounds how many templates are executed at a time, and with maxMemory the memory of all.
var renderers = make(chan struct{}, 2)

// renderArg makes this program execute a template.
const renderArg = "execute-template"

// rendering is what the child reads from its standard input: it has a token, which no argument may have.
type rendering struct {
	Text string
	Args templateArgs
}

// RenderChild executes a template, and ends the process, if that is what the process was started for. A program that
// calls Bootstrap calls it first.
func RenderChild() {
	if len(os.Args) != 2 || os.Args[1] != renderArg {
		return
	}
	if err := renderHere(os.Stdin, os.Stdout); err != nil {
		fmt.Fprint(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func renderHere(in io.Reader, out io.Writer) error {
	for resource, most := range map[int]uint64{
		unix.RLIMIT_CPU: maxSeconds, unix.RLIMIT_DATA: maxMemory, unix.RLIMIT_CORE: 0,
	} {
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("bound the template: %w", err)
		}
	}
	var r rendering
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return err
	}
	t, err := template.New(keyTemplate).Parse(r.Text)
	if err != nil {
		return err
	}
	return t.Execute(out, r.Args)
}

// render executes a template in a child process.
func render(ctx context.Context, text string, args templateArgs) ([]byte, error) {
	select {
	case renderers <- struct{}{}:
		defer func() { <-renderers }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	in, err := json.Marshal(rendering{text, args})
	if err != nil {
		return nil, err
	}
	out, says := bounded{most: maxOutput}, bounded{most: 4 << 10}
	child := exec.CommandContext(ctx, "/proc/self/exe", renderArg)
	child.Env = []string{"GOMAXPROCS=1", "GOTRACEBACK=none"}
	child.Stdin, child.Stdout, child.Stderr = bytes.NewReader(in), &out, &says
	err = child.Run()
	switch {
	case ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case err == nil:
		return out.Bytes(), nil
	case child.ProcessState == nil:
		return nil, fmt.Errorf("execute %s: %w", keyTemplate, err)
	case child.ProcessState.ExitCode() == 1:
		return nil, invalid(keyTemplate, "%s", &says)
	}
	return nil, invalid(keyTemplate, "it takes more than %d s of CPU, %d MiB of memory or %d bytes of output", maxSeconds,
		maxMemory>>20, maxOutput)
}

var errFull = errors.New("too much output")

// bounded is a buffer for a bounded number of bytes.
type bounded struct {
	bytes.Buffer
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.most {
		return 0, errFull
	}
	return b.Buffer.Write(p)
}
