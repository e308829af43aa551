//go:build client

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
)

// The client has the commands that only call the agent. It executes the whole program for all others, for help and
// completions, and to say what is wrong with a command line, so all of it is there once.

// wholeProgram is the name of the whole program. It is beside the client, or in lib/pannier beside the client's folder,
// where packages install it.
const wholeProgram = "pannier-agent"

// become executes the whole program if a command line is not for the client. It returns nil if it is.
func (a *app) become(root *cobra.Command, args []string) error {
	cmd, _, err := root.Find(args)
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	help := slices.Contains(args, "-h") || slices.Contains(args, "--help")
	if err == nil && !cmd.HasSubCommands() && !help && !traced() {
		return nil
	}
	return a.executeWhole()
}

// wrongUsage leaves it to the whole program to say what is wrong.
func (a *app) wrongUsage(*cobra.Command, error) error { return a.executeWhole() }

// executeWhole only returns with an error.
func (a *app) executeWhole() error {
	signal.Reset(os.Interrupt, syscall.SIGTERM) // what is caught here does not reach the other program
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program's folder: %w", err)
	}
	dir := filepath.Dir(exe)
	beside, packaged := filepath.Join(dir, wholeProgram), filepath.Join(filepath.Dir(dir), "lib/pannier", wholeProgram)
	for _, path := range []string{beside, packaged} {
		err = syscall.Exec(path, append([]string{a.opts.Name}, a.opts.Args...), os.Environ())
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("execute %s: %w", path, err)
		}
	}
	return &hintError{
		fmt.Errorf("this needs the program %s, which is neither %s nor %s", wholeProgram, beside, packaged),
		"install it in one of these places",
	}
}

// traced says whether the environment names a collector of traces, as for tracing.Open.
func traced() bool {
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// tracer records nothing: with a collector, the whole program has the command.
type tracer struct{}

func (*app) openTraces(context.Context) (*tracer, error) { return nil, nil }

// Begin is tracing.Tracer.Begin.
func (*tracer) Begin(ctx context.Context, _ string) (context.Context, func(error)) {
	return ctx, func(error) {}
}

// Connect is tracing.Tracer.Connect.
func (*tracer) Connect() []connect.Interceptor { return nil }

// Close is tracing.Tracer.Close.
func (*tracer) Close(context.Context, time.Duration) {}

// wants says which nouns to make: only the one that the command line names, since each takes time.
func (a *app) wants(name string) bool { return slices.Contains(a.opts.Args, name) }

func (a *app) completeRoot(root *cobra.Command) {
	if a.wants("agent") {
		root.AddCommand(a.noun("agent", "", a.agentOrders()...))
	}
}

func (*app) pluginFiles() []*cobra.Command { return nil }

func (*app) snapshotCommands() []*cobra.Command { return nil }
