package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/config/mountunits"
	"github.com/pannier/pannier/host/internal/system/tracing"
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
}

// Main runs one command of pannier and returns the exit code (see the constants).
func Main(o Options) int {
	a := New(o)
	switch name := filepath.Base(o.Name); name {
	case mountHelper, umountHelper:
		ctx, stop := untilSignal()
		defer stop()
		return a.mountMain(ctx, name)
	case filepath.Base(mountunits.Generator): // with the directories for its output, of which the first is the usual one
		err := Usage("systemd calls it (systemd.generator(7))")
		if len(o.Args) > 0 {
			err = mountunits.Generate("/", o.Args[0])
		}
		if err == nil {
			return ExitOK
		}
		return a.report(err, "")
	}
	root := a.rootCommand()
	if err := a.becomeAgent(root); err != nil {
		return a.report(err, "")
	}
	return a.Run(root)
}

// App is what the commands of a program share in one run.
type App struct {
	Options Options
	*Printer
	// The global flags.
	address, namespace, tokenFile string
	utc                           bool
	client                        *api.Client
	traces                        *tracing.Tracer
	// NoHints leaves out what to do next: another program reads the errors.
	NoHints bool
	// started is set when a command's own work begins: later errors are not of usage.
	started bool
	// patience bounds how long a repeatable call is retried while the agent is down.
	patience time.Duration
	// silence bounds how long a stop waits for an agent that does not begin to answer; 0: not.
	silence time.Duration
}

// New returns the state of one run.
func New(o Options) *App {
	return &App{Options: o, Printer: &Printer{Out: o.Stdout, Err: o.Stderr}, patience: 30 * time.Second}
}

// flushPatience is how long a command's end waits until the collector has taken its spans.
const flushPatience = 500 * time.Millisecond

// Run executes the command that the arguments name, and returns the exit code.
func (a *App) Run(root *cobra.Command) int {
	ctx, stop := untilSignal()
	defer stop()
	args := longFlags(root, a.Options.Args)
	root.SetOut(a.Out)
	if oneDash(a.Options.Args) {
		root.SetOut(oneDashed{a.Out})
		if last := &args[len(args)-1]; len(*last) > 1 && !strings.HasPrefix(*last, "--") { // what a short flag begins
			*last = "-" + *last
		}
	}
	root.SetArgs(args)
	root.SetErr(a.Err)
	var err error
	if a.traces, err = tracing.Open(ctx, tracing.Config{
		Program: "pannier", Version: a.Options.Version, Log: hclog.New(&hclog.LoggerOptions{Output: a.Err}),
	}); err != nil {
		return a.report(err, "")
	}
	cmd, err := root.ExecuteContextC(ctx)
	if a.client != nil {
		// Closing idle connections cannot fail.
		_ = a.client.Close()
	}
	a.traces.Close(ctx, flushPatience)
	if err == nil {
		return ExitOK
	}
	if !a.started && !errors.As(err, new(*usageError)) { // one of cobra's own
		cmd, err = root, Usage("%w", err)
	}
	return a.report(err, cmd.CommandPath())
}

// untilSignal returns a context that ends with a signal to stop. One that is ignored, as nohup does it, stays ignored.
func untilSignal() (context.Context, context.CancelFunc) {
	signals := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM}, signal.Ignored)
	if len(signals) == 0 { // for NotifyContext that would be all signals
		return context.WithCancel(context.Background())
	}
	return signal.NotifyContext(context.Background(), signals...)
}

func (a *App) rootCommand() *cobra.Command {
	root := nounOf("pannier", "CSI volumes and Consul identities for the workloads of a host",
		[]verb{eventsVerb(), statusVerb(), monitorVerb(), doctorVerb(), debugVerb()},
		volumeNoun(), driverNoun(), deviceNoun(), pluginNoun(), workloadNoun(), tokenNoun(), nodeNoun(), serverNoun(),
		clusterNoun(), operatorNoun(), keyringNoun(), systemNoun(), aclNoun(), tlsNoun(), setupNoun(), importNoun(),
		selfNoun())
	root.others = []*cobra.Command{completionCommand(a.Printer), agentCommand()}
	return a.Root(a.tree(root))
}

// Root adds to the root of a program's commands what both programs have.
func (a *App) Root(root *cobra.Command) *cobra.Command {
	root.AddCommand(a.versionCommand())
	// Not cobra's own, whose template would keep the linker from leaving out methods that nothing calls.
	version, run := root.Flags().BoolP("version", "v", false, "show the version"), root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if *version {
			return a.Done(a.version(), nil, "pannier %s", a.Options.Version)
		}
		return run(cmd, args)
	}
	root.SilenceUsage, root.SilenceErrors = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		switch err.Error() {
		case "unknown flag: --json", "unknown flag: --format":
			err = fmt.Errorf("%w; did you mean -o json?", err)
		}
		return Usage("%w", err)
	})
	flags := root.PersistentFlags()
	flags.StringVar(&a.address, "address", "",
		"the agent's `address` (default: PANNIER_ADDR, then "+api.DefaultAddress+")")
	flags.StringVar(&a.namespace, "namespace", "",
		"the `namespace` (default: PANNIER_NAMESPACE, then "+claim.DefaultNamespace+")")
	flags.StringVar(&a.tokenFile, "token-file", "",
		"the `file` with the secret of the ACL token to call with (default: what PANNIER_TOKEN has)")
	flags.StringVarP(&a.format, "output", "o", formatTable, "output `format`: table or json")
	flags.BoolVar(&a.utc, "utc", false, "show times in UTC (default: this machine's zone, or TZ)")
	flags.BoolVar(&a.wide, "wide", false, "show tables in full, also where they are wider than the terminal")
	flags.BoolVar(&a.noColor, "no-color", false, "no colours (also: NO_COLOR)")
	a.complete(root)
	return root
}

// Noun returns a command that only has subcommands.
func (a *App) Noun(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				cmd.SetOut(a.Err)
				return errors.Join(cmd.Help(), silentExit(ExitUsage))
			}
			err := fmt.Errorf("unknown command %q", args[0])
			cmd.SuggestionsMinimumDistance = 2
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				at := max(0, slices.IndexFunc(near, func(name string) bool { return strings.HasPrefix(name, args[0]) }))
				err = fmt.Errorf("%w; did you mean %q?", err, near[at])
			}
			return Usage("%w", err)
		},
		Args: cobra.ArbitraryArgs,
	}
	cmd.AddCommand(commands...)
	return cmd
}

// complete gives the commands below one what follows from their names: the check of arguments, an example, and for a
// noun's list the names that people try.
func (a *App) complete(cmd *cobra.Command) {
	listed := false
	for _, sub := range cmd.Commands() {
		a.complete(sub)
		switch {
		case sub.HasSubCommands():
			continue
		case sub.Args == nil && !sub.DisableFlagParsing:
			sub.Args = checkArgs
		}
		a.completeArguments(sub)
		sub.Example = examples(sub)
		if sub.Name() == "list" {
			sub.Aliases, listed = []string{"ls"}, true
		}
	}
	for _, sub := range cmd.Commands() {
		if !listed && strings.HasPrefix(sub.Use, "status [") { // without an argument it is one
			sub.Aliases = []string{"list", "ls"}
		}
	}
}

// Do wraps a command's work with what all commands have in common.
func (a *App) Do(work func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := a.checkFormat(cmd)
		if err == nil {
			a.started = true
			if a.utc {
				time.Local = time.UTC
			}
			err = work(cmd.Context(), args)
		}
		return err
	}
}

// WithClient is Do for work that calls the agent.
func (a *App) WithClient(work func(ctx context.Context, client *api.Client, args []string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		return a.Do(func(ctx context.Context, args []string) (err error) {
			client, err := a.Client()
			if err != nil {
				return err
			}
			ctx, end := a.traces.Begin(ctx, cmd.CommandPath())
			defer func() { end(err) }()
			return advise(ctx, client, cmd, args, work(ctx, client, args))
		})(cmd, args)
	}
}

// each does something with every message of a stream, until it ends or is interrupted. err is its call's error.
func each[T any](ctx context.Context, stream *connect.ServerStreamForClient[T], err error, do func(*T) error) error {
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		if err := do(stream.Msg()); err != nil {
			return err
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil // following ends by an interrupt
	}
	return stream.Err()
}

// Client returns the client for the address of the flag or the environment.
func (a *App) Client() (*api.Client, error) {
	if a.client != nil {
		return a.client, nil
	}
	secret, err := a.token()
	if err != nil {
		return nil, Usage("%w", err)
	}
	client, err := api.New(a.Address(), api.WithToken(secret), api.WithTLS(tlsFromEnvironment()),
		api.WithInterceptors(append(a.traces.Connect(), a.announced())...))
	if err != nil {
		return nil, Usage("%w", err)
	}
	a.client = client
	return client, nil
}

// Address returns the address of the flag or the environment.
func (a *App) Address() string {
	return cmp.Or(a.address, os.Getenv("PANNIER_ADDR"), api.DefaultAddress)
}

// namespaceOr returns the namespace of the flag or the environment, or another.
func (a *App) namespaceOr(other string) string {
	return cmp.Or(a.namespace, os.Getenv("PANNIER_NAMESPACE"), other)
}

// version is this program's.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *App) version() version {
	v := version{Version: a.Options.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
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

func (a *App) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show this program's version",
		RunE: a.Do(func(context.Context, []string) error {
			v := a.version()
			return a.Done(v, nil, "%s", v)
		}),
	}
}
