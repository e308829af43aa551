package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/sdk/api"
)

// Options are main's input to the command.
type Options struct {
	// Name by which the program was called, such as mount.pannier, and Args without it.
	Name   string
	Args   []string
	Stdout *os.File
	Stderr *os.File
	// Version of the program.
	Version string
	// ReleaseKey is the public minisign key of releases; empty: none is built in.
	ReleaseKey string
	// RunAgent runs the agent until ctx is done and logs to the writer. Without it
	// there is no agent command.
	RunAgent func(ctx context.Context, cfg *config.Agent, version string, logs io.Writer) error
	// CheckAgent returns what would keep an agent with the configuration from working.
	CheckAgent func(cfg *config.Agent) error
}

// Main runs one command and returns the exit code (see the constants).
func Main(o Options) int {
	a := &app{opts: o, out: o.Stdout, err: o.Stderr, patience: 30 * time.Second}
	if name := filepath.Base(o.Name); name == mountHelper || name == umountHelper {
		ctx, stop := untilSignal()
		defer stop()
		return a.mountMain(ctx, name)
	}
	root := a.rootCommand()
	args := longFlags(root, o.Args)
	if err := a.become(root, args); err != nil { // before signals are caught, which would not reach the other program
		return a.report(err)
	}
	ctx, stop := untilSignal()
	defer stop()
	root.SetArgs(args)
	root.SetOut(a.out)
	root.SetErr(a.err)
	var err error
	if a.traces, err = a.openTraces(ctx); err != nil {
		return a.report(err)
	}
	err = root.ExecuteContext(ctx)
	if a.client != nil {
		// Closing idle connections cannot fail.
		_ = a.client.Close()
	}
	a.traces.Close(ctx, flushPatience)
	if err == nil {
		return ExitOK
	}
	if !a.started {
		err = a.wrongUsage(root, err)
	}
	return a.report(err)
}

// untilSignal returns a context that ends with a signal to stop. One that is ignored, as nohup does it, stays ignored.
func untilSignal() (context.Context, context.CancelFunc) {
	signals := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM}, signal.Ignored)
	if len(signals) == 0 { // for NotifyContext that would be all signals
		return context.WithCancel(context.Background())
	}
	return signal.NotifyContext(context.Background(), signals...)
}

// flushPatience is how long a command's end waits until the collector has taken its spans.
const flushPatience = 500 * time.Millisecond

// app is the state that the commands share in one run.
type app struct {
	opts     Options
	out, err io.Writer
	// The global flags.
	address, namespace, format string
	tokenFile                  string
	noColor                    bool
	client                     *api.Client
	traces                     *tracer
	// started is set when a command's own work begins: later errors are not of usage.
	started bool
	// patience bounds how long a repeatable call is retried while the
	// agent is down.
	patience time.Duration
}

// nouns are the root's commands that the client has too.
func (a *app) nouns() map[string]func() *cobra.Command {
	return map[string]func() *cobra.Command{
		"volume": a.volumeCommand, "driver": a.driverCommand, "device": a.deviceCommand, "plugin": a.pluginCommand,
		"workload": a.workloadCommand, "token": a.tokenCommand, "node": a.nodeCommand, "server": a.serverCommand,
		"operator": a.operatorCommand, "keyring": a.keyringCommand, "system": a.systemCommand, "acl": a.aclCommand,
		"tls": a.tlsCommand, "events": a.eventsCommand, "status": a.statusCommand, "monitor": a.monitorCommand,
		"self": a.selfCommand, "version": a.versionCommand,
	}
}

func (a *app) rootCommand() *cobra.Command {
	root := a.noun("pannier", "CSI volumes and Consul identities for the workloads of a host")
	for name, command := range a.nouns() {
		if a.wants(name) {
			root.AddCommand(command())
		}
	}
	a.completeRoot(root)
	root.SilenceUsage, root.SilenceErrors = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err: err, command: cmd.CommandPath()}
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.address, "address", "",
		"the agent's `address` (default: PANNIER_ADDR, then "+api.DefaultAddress+")")
	flags.StringVar(&a.namespace, "namespace", "",
		"the `namespace` (default: PANNIER_NAMESPACE, then "+claim.DefaultNamespace+")")
	flags.StringVar(&a.tokenFile, "token-file", "",
		"the `file` with the secret of the ACL token to call with (default: what PANNIER_TOKEN has)")
	flags.StringVarP(&a.format, "output", "o", formatTable, "output `format`: table or json")
	flags.BoolVar(&a.noColor, "no-color", false, "no colours (also: NO_COLOR)")
	return root
}

// noun returns a command that only has subcommands.
func (a *app) noun(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				cmd.SetOut(a.err)
				return errors.Join(cmd.Help(), silentExit(ExitUsage))
			}
			err := fmt.Errorf("unknown command %q", args[0])
			cmd.SuggestionsMinimumDistance = 2
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				err = fmt.Errorf("%w; did you mean %q?", err, near[0])
			}
			return &usageError{err: err, command: cmd.CommandPath()}
		},
		Args: cobra.ArbitraryArgs,
	}
	cmd.AddCommand(commands...)
	nameLists(commands)
	return cmd
}

// nameLists lets a noun's list be called by the names that people try.
func nameLists(commands []*cobra.Command) {
	named := func(name string) func(*cobra.Command) bool {
		return func(c *cobra.Command) bool { return c.Name() == name }
	}
	if i := slices.IndexFunc(commands, named("list")); i >= 0 {
		commands[i].Aliases = []string{"ls"}
	} else if i := slices.IndexFunc(commands, named("status")); i >= 0 && strings.HasPrefix(commands[i].Use, "status [") {
		commands[i].Aliases = []string{"list", "ls"} // without an argument it is one
	}
}

// do wraps a command's work with what all commands have in common.
func (a *app) do(work func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := a.checkFormat(cmd); err != nil {
			return &usageError{err: err, command: cmd.CommandPath()}
		}
		a.started = true
		return work(cmd.Context(), args)
	}
}

// withClient is do for work that calls the agent.
func (a *app) withClient(work func(ctx context.Context, client *api.Client, args []string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.do(func(ctx context.Context, args []string) (err error) {
			client, err := a.api()
			if err != nil {
				return err
			}
			ctx, end := a.traces.Begin(ctx, cmd.CommandPath())
			defer func() { end(err) }()
			return work(ctx, client, args)
		})(cmd, args)
	}
}

// api returns the client for the address of the flag or the environment.
func (a *app) api() (*api.Client, error) {
	if a.client != nil {
		return a.client, nil
	}
	secret, err := a.token()
	if err != nil {
		return nil, &usageError{err: err}
	}
	client, err := api.New(a.agentAddress(), api.WithToken(secret), api.WithTLS(tlsFromEnvironment()),
		api.WithInterceptors(a.traces.Connect()...))
	if err != nil {
		return nil, &usageError{err: err}
	}
	a.client = client
	return client, nil
}

// agentAddress returns the address of the flag or the environment.
func (a *app) agentAddress() string {
	return cmp.Or(a.address, os.Getenv("PANNIER_ADDR"), api.DefaultAddress)
}

// namespaceOr returns the namespace of the flag or the environment, or another.
func (a *app) namespaceOr(other string) string {
	if a.namespace != "" {
		return a.namespace
	}
	if ns := os.Getenv("PANNIER_NAMESPACE"); ns != "" {
		return ns
	}
	return other
}

// note writes a line for people to standard error.
func (a *app) note(format string, args ...any) {
	fmt.Fprintln(a.err, printable(fmt.Sprintf(format, args...)))
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colored reports whether a stream takes colours (https://no-color.org).
func (a *app) colored(w io.Writer) bool {
	return !a.noColor && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w)
}

// version is this program's.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) version() version {
	v := version{Version: a.opts.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				v.Revision = setting.Value
			}
		}
	}
	return v
}

func (v version) String() string {
	text := fmt.Sprintf("pannier %s (%s, %s)", v.Version, v.Go, v.Platform)
	if v.Revision != "" {
		text += " revision " + v.Revision[:min(12, len(v.Revision))]
	}
	return text
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show this program's version",
		Example: "pannier version",
		Args:    exactly(),
		RunE: a.do(func(context.Context, []string) error {
			v := a.version()
			if a.format == formatJSON {
				return a.printValue(v)
			}
			_, err := fmt.Fprintln(a.out, v)
			return err
		}),
	}
}
