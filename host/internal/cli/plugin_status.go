package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) pluginList() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: "list", Short: "List the versions of all plugins: what serves, is installed, kept or refused",
		Long: `List the versions of all plugins, a line each, as pannier plugin versions does for one: what
serves, what is kept, and what else is in the plugin directory. pannier plugin status shows
the processes.`,
		Example: "pannier plugin list\npannier plugin list -node n2",
		RunE: a.Do(func(ctx context.Context, _ []string) error {
			return a.listPlugins(ctx, node, func(plugins []*hostv1.Plugin) error {
				t := NewTable("NAME", "KIND", "VERSION", "SHA256", "FILE", "STATE")
				for _, p := range plugins {
					if len(p.GetVersions()) == 0 {
						t.Row(p.GetName(), p.GetKind(), "", "", "", pluginState(p))
					}
					for _, v := range p.GetVersions() {
						t.Row(p.GetName(), p.GetKind(), v.GetVersion(), shortSum(v.GetSha256()), v.GetFile(), versionState(p, v))
					}
				}
				return a.Show(t)
			})
		}),
	}
	a.nodeFlag(cmd, &node)
	return cmd
}

func (a *App) pluginStatus() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: "status [NAME]", Short: "List the plugins with their processes, or show one",
		Example:           "pannier plugin status csi-bridge",
		ValidArgsFunction: a.CompleteIDs(pluginNamesOf(&node)),
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if len(args) == 0 {
				return a.listPlugins(ctx, node, a.showPlugins)
			}
			p, err := onePlugin(ctx, client, node, args[0])
			if err != nil {
				return err
			}
			return a.Print(p, func() error { return a.showPlugin(p) })
		}),
	}
	a.nodeFlag(cmd, &node)
	return cmd
}

func (a *App) pluginVersions() *cobra.Command {
	return &cobra.Command{
		Use: "versions NAME", Short: "List the binaries of a plugin that can be brought back, wait, or are refused",
		Long: `List the binaries of a plugin: the copies that served and are kept (keep_versions), the one
that served last at the end, then other files of the plugin directory and what is refused.
With -o json each is one line.`,
		Example:           "pannier plugin versions csi-bridge",
		ValidArgsFunction: a.CompleteIDs(PluginNames),
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			p, err := onePlugin(ctx, client, "", args[0])
			if err != nil {
				return err
			}
			return printLines(a, p.GetVersions(), func() error { return a.showVersions(p) })
		}),
	}
}

// printLines prints each message as one line of JSON, or calls table for people.
func printLines[M proto.Message](a *App, all []M, table func() error) error {
	if a.format != formatJSON {
		return table()
	}
	for _, m := range all {
		if err := a.writeJSON(m, ""); err != nil {
			return err
		}
	}
	return nil
}

func (a *App) showVersions(p *hostv1.Plugin) error {
	if len(p.GetVersions()) == 0 {
		a.Note("the plugin has never come up")
		return nil
	}
	t := NewTable("VERSION", "SHA256", "SERVED FROM", "UNTIL", "FILE", "STATE")
	for _, v := range p.GetVersions() {
		t.Row(v.GetVersion(), shortSum(v.GetSha256()), moment(v.GetServedFrom()), moment(v.GetServedUntil()), v.GetFile(),
			versionState(p, v))
	}
	return a.Show(t)
}

// versionState says what is with a binary of a plugin.
func versionState(p *hostv1.Plugin, v *hostv1.PluginVersion) Cell {
	if v.GetSha256() == "" {
		return Cell{"not used", ""}
	}
	var words []string
	var shade Color
	if v.GetKept() {
		words = append(words, "kept")
	}
	if v.GetSha256() == p.GetSha256() && p.GetPid() != 0 {
		words, shade = []string{"serves"}, Green
	}
	if v.GetSha256() == p.GetPinned() {
		words = append(words, "pinned")
	}
	if v.GetWaits() {
		words, shade = append(words, "waits for pannier plugin unpin"), Yellow
	}
	if why := v.GetRefused(); why != "" {
		words, shade = append(words, "refused: "+why), Red
	}
	return Cell{strings.Join(words, ", "), shade}
}

// moment formats a time; an unset one is empty.
func moment(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return at.AsTime().Local().Format(time.DateTime)
}

func (a *App) pluginHistory() *cobra.Command {
	return &cobra.Command{
		Use: "history NAME", Short: "Show a plugin's last 20 swaps",
		Long:              "Show a plugin's last 20 swaps, the newest last. With -o json each is one line.",
		Example:           "pannier plugin history csi-bridge",
		ValidArgsFunction: a.CompleteIDs(PluginNames),
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			p, err := onePlugin(ctx, client, "", args[0])
			if err != nil {
				return err
			}
			return printLines(a, p.GetSwaps(), func() error { return a.showSwaps(p.GetSwaps()) })
		}),
	}
}

// listPlugins asks for all plugins of a node; table shows them to people.
func (a *App) listPlugins(ctx context.Context, node string, table func([]*hostv1.Plugin) error) error {
	client, err := a.Client()
	if err != nil {
		return err
	}
	resp, err := client.Plugins.ListPlugins(ctx, &hostv1.ListPluginsRequest{Node: node})
	if err != nil {
		return err
	}
	return a.Print(resp, func() error {
		if len(resp.GetPlugins()) == 0 {
			return a.showPlugins(nil)
		}
		return table(resp.GetPlugins())
	})
}

func (a *App) showPlugins(plugins []*hostv1.Plugin) error {
	if len(plugins) == 0 {
		a.Note("no plugins; the agent looks for them in its plugin_dir")
		return nil
	}
	t := NewTable("NAME", "KIND", "VERSION", "STATE", "PID", "UP", "CALLS", "RESTARTS", "SHA256", "LAST ERROR")
	for _, p := range plugins {
		t.Row(p.GetName(), p.GetKind(), p.GetVersion(), pluginState(p), number(p.GetPid()), up(p),
			p.GetLeases(), p.GetRestarts(), shortSum(p.GetSha256()), p.GetLastError())
	}
	if err := a.Show(t); err != nil {
		return err
	}
	for _, p := range plugins {
		notes := append([]string{p.GetFileProblem(), p.GetConfigProblem(), "", ""}, p.GetUnusedDrivers()...)
		if unused := p.GetUnused(); unused != "" {
			notes[2] = "it is not used: " + unused
		}
		if c := p.GetCanary(); c != nil {
			notes[3] = canary(c)
		}
		if at := p.GetDebuggedAt(); at != "" {
			notes = append(notes, "it is debugged: its calls go to "+at)
		}
		for _, note := range notes {
			if note == "" {
				continue
			}
			if _, err := fmt.Fprintf(a.Out, "plugin %q: %s\n", printable(p.GetName()), printable(note)); err != nil {
				return err
			}
		}
	}
	return nil
}

// waiting names a file that waits for a pinned plugin.
func waiting(v *hostv1.PluginVersion) string {
	version := "an unknown version (pannier plugin verify shows it)"
	if v.GetVersion() != "" {
		version = "version " + v.GetVersion()
	}
	return fmt.Sprintf("%s in %s, sha256 %s", version, v.GetFile(), shortSum(v.GetSha256()))
}

// shownSwaps is how many swaps a plugin's status shows; its history has all.
const shownSwaps = 5

func (a *App) showPlugin(p *hostv1.Plugin) error {
	t := NewTable()
	t.Row("Name", p.GetName())
	t.Row("Kind", p.GetKind())
	t.Row("State", pluginState(p))
	t.Row("Version", p.GetVersion())
	t.Row("SHA256", p.GetSha256())
	t.Row("Generation", number(int64(p.GetGeneration())))
	if p.GetPid() != 0 {
		t.Row("Process", fmt.Sprintf("%d, up %s, %s", p.GetPid(), up(p), escape.Count(p.GetRestarts(), "restart")))
	} else {
		t.Row("Process", fmt.Sprintf("none, %s", escape.Count(p.GetRestarts(), "restart")))
	}
	t.Row("Calls", fmt.Sprintf("%d in flight, %d answered, %d of them failed", p.GetLeases(), p.GetCalls(),
		p.GetFailedCalls()))
	t.Row("Degraded", p.GetDegraded())
	t.Row("Serves", strings.Join(p.GetServes(), ", "))
	t.Row("Unused", p.GetUnused())
	for _, d := range p.GetUnusedDrivers() {
		t.Row("Unused", d)
	}
	if at := p.GetDebuggedAt(); at != "" {
		t.Row("Debugged", "its calls go to "+at)
	}
	if n := p.GetDraining(); n > 0 {
		t.Row("Draining", fmt.Sprintf("%d older, with calls of their own", n))
	}
	t.Row("File", p.GetFileProblem())
	t.Row("Configuration", p.GetConfigProblem())
	t.Row("Last error", p.GetLastError())
	if p.GetNextTryAt() != nil {
		t.Row("Next try", ahead(p.GetNextTryAt()))
	}
	t.Row("Pinned", p.GetPinned())
	for _, v := range p.GetVersions() {
		if v.GetWaits() {
			t.Row("Waiting", fmt.Sprintf("%s, until pannier plugin unpin %s", waiting(v), p.GetName()))
		}
	}
	t.Row("Served before", p.GetLastGood())
	if err := a.Show(t); err != nil {
		return err
	}
	if err := a.showCanary(p); err != nil {
		return err
	}
	if err := a.showRefused(p.GetRefused()); err != nil {
		return err
	}
	swaps := p.GetSwaps()
	if len(swaps) == 0 {
		return nil
	}
	if err := a.heading("Swaps"); err != nil {
		return err
	}
	return a.showSwaps(swaps[max(0, len(swaps)-shownSwaps):])
}

// canary says which part of the calls a canary gets.
func canary(c *hostv1.PluginCanary) string {
	return fmt.Sprintf("%s gets %d%% of the calls", side(c.GetGeneration()), c.GetPercent())
}

// showCanary shows the process that serves and the canary side by side, since the canary gets calls.
func (a *App) showCanary(p *hostv1.Plugin) error {
	c := p.GetCanary()
	if c == nil {
		return nil
	}
	err := a.heading(fmt.Sprintf("Canary for %s, until pannier plugin promote or rollback %s", age(c.GetStartedAt()),
		p.GetName()))
	if err != nil {
		return err
	}
	t := NewTable("PROCESS", "GENERATION", "VERSION", "SHA256", "PID", "CALLS", "PART", "FAILED", "RATE")
	row := func(what string, g *hostv1.PluginGeneration, pid, calls int64, part int32, failed int64) {
		t.Row(what, g.GetGeneration(), g.GetVersion(), shortSum(g.GetSha256()), pid, calls, fmt.Sprintf("%d%%", part), failed,
			rate(failed, calls))
	}
	serves := &hostv1.PluginGeneration{Generation: p.GetGeneration(), Version: p.GetVersion(), Sha256: p.GetSha256()}
	row("serves", serves, p.GetPid(), c.GetServingCalls(), 100-c.GetPercent(), c.GetServingFailedCalls())
	row("canary", c.GetGeneration(), c.GetPid(), c.GetCalls(), c.GetPercent(), c.GetFailedCalls())
	return a.Show(t)
}

func (a *App) showRefused(refused map[string]string) error {
	if len(refused) == 0 {
		return nil
	}
	if err := a.heading("Refused until they change, or until pannier plugin swap"); err != nil {
		return err
	}
	t := NewTable("SHA256", "REASON")
	for _, sum := range slices.Sorted(maps.Keys(refused)) {
		t.Row(shortSum(sum), refused[sum])
	}
	return a.Show(t)
}

func (a *App) showSwaps(swaps []*hostv1.PluginSwap) error {
	if len(swaps) == 0 {
		a.Note("the plugin has never been swapped")
		return nil
	}
	t := NewTable("AT", "FROM", "FAILED", "TO", "FAILED", "TOOK", "CALLS CARRIED", "RESULT")
	for _, w := range swaps {
		result := Cell{"swapped", Green}
		switch {
		case w.GetError() != "" && w.GetCanaryPercent() != 0:
			result = Cell{fmt.Sprintf("canary of %d%%, not promoted: %s", w.GetCanaryPercent(), w.GetError()), Yellow}
		case w.GetError() != "":
			result = Cell{"refused: " + w.GetError(), Red}
		case w.GetRollback():
			result = Cell{"rolled back: " + w.GetWhy(), Yellow}
		case w.GetRestart():
			result.Text = "restarted"
		case w.GetCanaryPercent() != 0:
			result.Text = fmt.Sprintf("canary of %d%%, promoted", w.GetCanaryPercent())
		}
		t.Row(moment(w.GetAt()), side(w.GetFrom()), failedOf(w.GetFrom()), side(w.GetTo()), failedOf(w.GetTo()),
			short(w.GetTook().AsDuration()), w.GetCarried(), result)
	}
	return a.Show(t)
}

// failedOf says how many calls of a process failed until a swap; empty: it had answered none.
func failedOf(g *hostv1.PluginGeneration) string {
	if g.GetCalls() == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d (%s)", g.GetFailedCalls(), g.GetCalls(), rate(g.GetFailedCalls(), g.GetCalls()))
}

// rate is the part of the calls that failed.
func rate(failed, calls int64) string {
	return fmt.Sprintf("%.1f%%", 100*float64(failed)/float64(max(calls, 1)))
}

// lastSwap returns the last swap; nil when there was none.
func lastSwap(p *hostv1.Plugin) *hostv1.PluginSwap {
	if swaps := p.GetSwaps(); len(swaps) > 0 {
		return swaps[len(swaps)-1]
	}
	return nil
}

func side(g *hostv1.PluginGeneration) string {
	return generation(g.GetGeneration(), g.GetVersion(), g.GetSha256())
}

// generation describes a process of a plugin, or a binary that never became one.
func generation(n uint64, version, sum string) string {
	if n == 0 {
		return "sha256 " + shortSum(sum)
	}
	return fmt.Sprintf("generation %d (version %s, sha256 %s)", n, version, shortSum(sum))
}

// shortSum shortens a sum to what distinguishes it.
func shortSum(sum string) string { return sum[:min(12, len(sum))] }

// up returns how long a plugin's process has run.
func up(p *hostv1.Plugin) string {
	if p.GetPid() == 0 {
		return ""
	}
	return age(p.GetStartedAt())
}

func pluginState(p *hostv1.Plugin) Cell {
	state := p.GetState()
	if p.GetDegraded() != "" {
		return Cell{"degraded", Red}
	}
	switch state {
	case "running":
		return Cell{state, Green}
	case "failed", "unhealthy":
		return Cell{state, Red}
	default:
		return Cell{state, Yellow}
	}
}

// number leaves out a zero.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// maxLogLines is the most lines that the agent returns at once.
const maxLogLines = 10_000

func (a *App) pluginLogs() *cobra.Command {
	var follow bool
	var recent int32
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "Show what a plugin's processes printed",
		Long: `Show what a plugin's processes printed, both old and new during a swap, and with -follow
new lines as they come. Lines of the SDK's logger are formatted; with -o json each line
is shown as it was printed, in a message.`,
		Example:           "pannier plugin logs csi-bridge -follow",
		ValidArgsFunction: a.CompleteIDs(PluginNames),
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if err := checkRecent(recent); err != nil {
				return err
			}
			stream, err := client.Plugins.PluginLog(ctx, &hostv1.PluginLogRequest{Name: args[0], Recent: recent, Follow: follow})
			if err != nil {
				return hintPlugin(err)
			}
			return hintPlugin(showLog(ctx, a, stream))
		}),
	}
	logFlags(cmd, &recent, &follow)
	return cmd
}

// logFlags are those of the commands that show a log.
func logFlags(cmd *cobra.Command, recent *int32, follow *bool) {
	cmd.Flags().BoolVarP(follow, "follow", "f", false, "go on with new lines")
	cmd.Flags().Int32Var(recent, "recent", 100, "how many of the last lines to show first, at most 10000")
}

func checkRecent(recent int32) error {
	if recent < 0 || recent > maxLogLines {
		return Usage("-recent: from 0 to %d", maxLogLines)
	}
	return nil
}

// logResponse is a message with a line of a log.
type logResponse interface {
	proto.Message
	GetLine() string
}

// showLog shows the lines of a log until the stream or ctx ends.
func showLog[T any, M interface {
	*T
	logResponse
}](ctx context.Context, a *App, stream *connect.ServerStreamForClient[T]) error {
	defer stream.Close()
	for stream.Receive() {
		if err := a.showLogLine(M(stream.Msg())); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil // following ends by an interrupt
	}
	return stream.Err()
}

func (a *App) showLogLine(m logResponse) error {
	return a.printLine(m, func() error { return a.Say("%s", logLine(m.GetLine())) })
}

// logLine formats a line of the SDK's logger (hclog's JSON) for people; other lines are unchanged.
func logLine(line string) string {
	var entry map[string]any
	numbers := json.NewDecoder(strings.NewReader(line))
	numbers.UseNumber() // digits as they were logged
	if !strings.HasPrefix(line, "{") || numbers.Decode(&entry) != nil {
		return line
	}
	message, isMessage := entry["@message"].(string)
	level, isLevel := entry["@level"].(string)
	at, isTime := entry["@timestamp"].(string)
	if !isMessage || !isLevel || !isTime {
		return line
	}
	text := fmt.Sprintf("%s  %-5s  %s", at, strings.ToUpper(level), message)
	for _, key := range slices.Sorted(maps.Keys(entry)) {
		if !strings.HasPrefix(key, "@") {
			text += fmt.Sprintf("  %s=%v", key, entry[key])
		}
	}
	return text
}
