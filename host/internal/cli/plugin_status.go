package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// noPlugins is the note in place of an empty list.
const noPlugins = "no plugins; the agent looks for them in its plugin_dir"

func (a *App) pluginList() *cobra.Command {
	req := &hostv1.ListPluginsRequest{}
	cmd := &cobra.Command{
		Use: "list", Short: "List the versions of all plugins: what serves, is installed, kept or refused",
		Long: `List the versions of all plugins, a line each, as pannier plugin versions does for one: what
serves, what is kept, and what else is in the plugin directory. pannier plugin status shows
the processes.`,
		Example: "pannier plugin list\npannier plugin list -node n2",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.Plugins.ListPlugins(ctx, req)
			return a.Print(resp, err, func() {
				t := NewTable("NAME", "KIND", "VERSION", "SHA256", "FILE", "STATE")
				for _, p := range resp.GetPlugins() {
					if len(p.GetVersions()) == 0 {
						t.Row(p.GetName(), p.GetKind(), "", "", "", pluginState(p))
					}
					for _, v := range p.GetVersions() {
						t.Row(p.GetName(), p.GetKind(), v.GetVersion(), shortSum(v.GetSha256()), v.GetFile(), versionState(p, v))
					}
				}
				a.List(t, noPlugins)
			})
		}),
	}
	nodeFlag(cmd, &req.Node)
	return cmd
}

func (a *App) pluginStatus() *cobra.Command {
	req := &hostv1.ListPluginsRequest{}
	cmd := &cobra.Command{
		Use: "status [NAME]", Short: "List the plugins with their processes, or show one",
		Example: "pannier plugin status csi-bridge",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if len(args) == 0 {
				resp, err := client.Plugins.ListPlugins(ctx, req)
				return a.Print(resp, err, func() { a.showPlugins(resp.GetPlugins()) })
			}
			p, err := onePlugin(ctx, client, req.GetNode(), args[0])
			return a.Print(p, err, func() { a.showPlugin(p) })
		}),
	}
	nodeFlag(cmd, &req.Node)
	return cmd
}

func (a *App) pluginVersions() *cobra.Command {
	return &cobra.Command{
		Use: "versions NAME", Short: "List the binaries of a plugin that can be brought back, wait, or are refused",
		Long: `List the binaries of a plugin: the copies that served and are kept (keep_versions), the one
that served last at the end, then other files of the plugin directory and what is refused.
With -o json each is one line.`,
		Example: "pannier plugin versions csi-bridge",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			p, err := onePlugin(ctx, client, "", args[0])
			return printLines(a, p.GetVersions(), err, func() { a.showVersions(p) })
		}),
	}
}

// printLines is Print of several messages, each of which is a line of JSON.
func printLines[M proto.Message](a *App, all []M, err error, people func()) error {
	if err != nil || a.format != formatJSON {
		return a.Print(nil, err, people)
	}
	for _, m := range all {
		a.writeJSON(m, "")
	}
	return a.outErr
}

func (a *App) showVersions(p *hostv1.Plugin) {
	t := NewTable("VERSION", "SHA256", "SERVED FROM", "UNTIL", "FILE", "STATE")
	for _, v := range p.GetVersions() {
		t.Row(v.GetVersion(), shortSum(v.GetSha256()), moment(v.GetServedFrom()), moment(v.GetServedUntil()), v.GetFile(),
			versionState(p, v))
	}
	a.List(t, "the plugin has never come up")
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
		Long:    "Show a plugin's last 20 swaps, the newest last. With -o json each is one line.",
		Example: "pannier plugin history csi-bridge",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			p, err := onePlugin(ctx, client, "", args[0])
			return printLines(a, p.GetSwaps(), err, func() {
				a.List(swapTable(p.GetSwaps()), "the plugin has never been swapped")
			})
		}),
	}
}

func (a *App) showPlugins(plugins []*hostv1.Plugin) {
	t := NewTable("NAME", "KIND", "VERSION", "STATE", "PID", "UP", "CALLS", "RESTARTS", "SHA256", "LAST ERROR")
	for _, p := range plugins {
		t.Row(p.GetName(), p.GetKind(), p.GetVersion(), pluginState(p), number(p.GetPid()), up(p),
			p.GetLeases(), p.GetRestarts(), shortSum(p.GetSha256()), p.GetLastError())
	}
	a.List(t, noPlugins)
	for _, p := range plugins {
		say := func(before, text string) {
			if text != "" {
				a.Say("plugin %q: %s%s", p.GetName(), before, text)
			}
		}
		say("", p.GetFileProblem())
		say("", p.GetConfigProblem())
		say("it is not used: ", p.GetUnused())
		say("", canary(p.GetCanary()))
		for _, d := range p.GetUnusedDrivers() {
			say("", d)
		}
		say("it is debugged: its calls go to ", p.GetDebuggedAt())
	}
}

// shownSwaps is how many swaps a plugin's status shows; its history has all.
const shownSwaps = 5

func (a *App) showPlugin(p *hostv1.Plugin) {
	t := NewTable()
	t.Row("Name", p.GetName())
	t.Row("Kind", p.GetKind())
	t.Row("State", pluginState(p))
	t.Row("Version", p.GetVersion())
	t.Row("SHA256", p.GetSha256())
	t.Row("Generation", number(int64(p.GetGeneration())))
	process := "none"
	if p.GetPid() != 0 {
		process = fmt.Sprintf("%d, up %s", p.GetPid(), up(p))
	}
	t.Row("Process", process+", "+escape.Count(p.GetRestarts(), "restart"))
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
	t.some("Next try", ahead(p.GetNextTryAt()))
	t.Row("Pinned", p.GetPinned())
	for _, v := range p.GetVersions() {
		if v.GetWaits() {
			t.Row("Waiting", fmt.Sprintf("version %s in %s, sha256 %s, until pannier plugin unpin %s",
				cmp.Or(v.GetVersion(),
					"unknown (pannier plugin verify shows it)"), v.GetFile(), shortSum(v.GetSha256()), p.GetName()))
		}
	}
	t.Row("Served before", p.GetLastGood())
	a.Show(t)
	a.showCanary(p)
	refused := NewTable("SHA256", "REASON")
	for _, sum := range slices.Sorted(maps.Keys(p.GetRefused())) {
		refused.Row(shortSum(sum), p.GetRefused()[sum])
	}
	a.Section("Refused until they change, or until pannier plugin swap", refused)
	swaps := p.GetSwaps()
	a.Section("Swaps", swapTable(swaps[max(0, len(swaps)-shownSwaps):]))
}

// canary says which part of the calls a canary gets; empty: there is none.
func canary(c *hostv1.PluginCanary) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s gets %d%% of the calls", side(c.GetGeneration()), c.GetPercent())
}

// showCanary shows the process that serves and the canary side by side, since the canary gets calls.
func (a *App) showCanary(p *hostv1.Plugin) {
	c := p.GetCanary()
	if c == nil {
		return
	}
	t := NewTable("PROCESS", "GENERATION", "VERSION", "SHA256", "PID", "CALLS", "PART", "FAILED", "RATE")
	row := func(what string, g *hostv1.PluginGeneration, pid, calls int64, part int32, failed int64) {
		t.Row(what, g.GetGeneration(), g.GetVersion(), shortSum(g.GetSha256()), pid, calls, fmt.Sprintf("%d%%", part), failed,
			rate(failed, calls))
	}
	serves := &hostv1.PluginGeneration{Generation: p.GetGeneration(), Version: p.GetVersion(), Sha256: p.GetSha256()}
	row("serves", serves, p.GetPid(), c.GetServingCalls(), 100-c.GetPercent(), c.GetServingFailedCalls())
	row("canary", c.GetGeneration(), c.GetPid(), c.GetCalls(), c.GetPercent(), c.GetFailedCalls())
	a.Section(fmt.Sprintf("Canary for %s, until pannier plugin promote or rollback %s", age(c.GetStartedAt()),
		p.GetName()), t)
}

func swapTable(swaps []*hostv1.PluginSwap) *Table {
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
	return t
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

func (a *App) pluginLogs() *cobra.Command {
	req := &hostv1.PluginLogRequest{}
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "Show what a plugin's processes printed",
		Long: `Show what a plugin's processes printed, both old and new during a swap, and with -follow
new lines as they come. Lines of the SDK's logger are formatted; with -o json each line
is shown as it was printed, in a message.`,
		Example: "pannier plugin logs csi-bridge -follow",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			req.Name = args[0]
			stream, err := client.Plugins.PluginLog(ctx, req)
			return each(ctx, stream, err, func(m *hostv1.PluginLogResponse) error { return a.showLogLine(m) })
		}),
	}
	logFlags(cmd, &req.Recent, &req.Follow)
	return cmd
}

// logFlags are those of the commands that show a log.
func logFlags(cmd *cobra.Command, recent *int32, follow *bool) {
	cmd.Flags().BoolVarP(follow, "follow", "f", false, "go on with new lines")
	cmd.Flags().Int32Var(recent, "recent", 100, "how many of the last lines to show first, at most 10000")
}

// showLogLine shows a message with a line of a log.
func (a *App) showLogLine(m interface{ GetLine() string }) error {
	return a.printLine(m, func() { a.Say("%s", logLine(m.GetLine())) })
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
