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

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	escape "github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// noPlugins is the note in place of an empty list.
const noPlugins = "no plugins; the agent looks for them in its plugin_dir"

// pluginStatusVerbs show what a plugin is, was and can be.
func pluginStatusVerbs() []verb {
	installed, running, log := &hostv1.ListPluginsRequest{}, &hostv1.ListPluginsRequest{}, &hostv1.PluginLogRequest{}
	return []verb{
		{
			use: "list", short: "List the versions of all plugins: what serves, is installed, kept or refused",
			long: `List the versions of all plugins, a line each, as pannier plugin versions does for one: what
serves, what is kept, and what else is in the plugin directory. pannier plugin status shows
the processes.`,
			example: "\n-node n2",
			flags:   func(f *pflag.FlagSet) { nodeFlag(f, &installed.Node) },
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Plugins.ListPlugins(ctx, installed)
				return list(c.Printer, resp, err, resp.GetPlugins(), columns[*hostv1.Plugin]{
					[]string{"NAME", "KIND", "VERSION", "SHA256", "FILE", "STATE"},
					func(t *Table, p *hostv1.Plugin) {
						if len(p.GetVersions()) == 0 {
							t.Row(p.GetName(), p.GetKind(), "", "", "", pluginState(p))
						}
						for _, v := range p.GetVersions() {
							t.Row(p.GetName(), p.GetKind(), v.GetVersion(), shortSum(v.GetSha256()), v.GetFile(), versionState(p, v))
						}
					},
					noPlugins,
				})
			},
		},
		{
			use: "status [NAME]", short: "List the plugins with their processes, or show one", example: "csi-bridge",
			flags: func(f *pflag.FlagSet) { nodeFlag(f, &running.Node) },
			run: func(ctx context.Context, c *call) error {
				if len(c.args) == 0 {
					resp, err := c.Plugins.ListPlugins(ctx, running)
					return c.Print(resp, err, func() { showPlugins(c.Printer, resp.GetPlugins()) })
				}
				p, err := onePlugin(ctx, c, running)
				first, others := pluginTables(p)
				return c.Tables(p, err, first, others...)
			},
		},
		{
			use: "versions NAME", short: "List the binaries of a plugin that can be brought back, wait, or are refused",
			long: `List the binaries of a plugin: the copies that served and are kept (keep_versions), the one
that served last at the end, then other files of the plugin directory and what is refused.
With -o json each is one line.`,
			example: "csi-bridge",
			run: func(ctx context.Context, c *call) error {
				p, err := onePlugin(ctx, c, &hostv1.ListPluginsRequest{})
				return printLines(c.Printer, p.GetVersions(), err, columns[*hostv1.PluginVersion]{
					[]string{"VERSION", "SHA256", "SERVED FROM", "UNTIL", "FILE", "STATE"},
					func(t *Table, v *hostv1.PluginVersion) {
						t.Row(v.GetVersion(), shortSum(v.GetSha256()), moment(v.GetServedFrom()), moment(v.GetServedUntil()),
							v.GetFile(), versionState(p, v))
					},
					"the plugin has never come up",
				})
			},
		},
		{
			use: "history NAME", short: "Show a plugin's last 20 swaps", example: "csi-bridge",
			long: "Show a plugin's last 20 swaps, the newest last. With -o json each is one line.",
			run: func(ctx context.Context, c *call) error {
				p, err := onePlugin(ctx, c, &hostv1.ListPluginsRequest{})
				return printLines(c.Printer, p.GetSwaps(), err, swapColumns)
			},
		},
		{
			use: "logs NAME", short: "Show what a plugin's processes printed", example: "csi-bridge -follow",
			long: `Show what a plugin's processes printed, both old and new during a swap, and with -follow
new lines as they come. Lines of the SDK's logger are formatted; with -o json each line
is shown as it was printed, in a message.`,
			flags: func(f *pflag.FlagSet) { logFlags(f, &log.Recent, &log.Follow) },
			run: func(ctx context.Context, c *call) error {
				log.Name = c.args[0]
				stream, err := c.Plugins.PluginLog(ctx, log)
				return each(ctx, stream, err, func(m *hostv1.PluginLogResponse) error { return c.showLogLine(m) })
			},
		},
	}
}

// onePlugin reads the plugin of the first argument.
func onePlugin(ctx context.Context, c *call, req *hostv1.ListPluginsRequest) (*hostv1.Plugin, error) {
	resp, err := c.Plugins.ListPlugins(ctx, req)
	if err != nil {
		return nil, err
	}
	for _, p := range resp.GetPlugins() {
		if p.GetName() == c.args[0] {
			return p, nil
		}
	}
	return nil, Hinted(Coded(ExitNotFound, fmt.Errorf("no plugin %q", c.args[0])), "pannier plugin list lists the plugins")
}

// printLines is Print of a list of messages, each of which is a line of JSON.
func printLines[M proto.Message](p *Printer, all []M, err error, c columns[M]) error {
	if err != nil || p.format != formatJSON {
		return list(p, nil, err, all, c)
	}
	for _, m := range all {
		p.writeJSON(m, "")
	}
	return p.outErr
}

// versionState returns the state of a plugin's binary.
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

var pluginColumns = columns[*hostv1.Plugin]{
	[]string{"NAME", "KIND", "VERSION", "STATE", "PID", "UP", "CALLS", "RESTARTS", "SHA256", "LAST ERROR"},
	func(t *Table, p *hostv1.Plugin) {
		t.Row(p.GetName(), p.GetKind(), p.GetVersion(), pluginState(p), number(p.GetPid()), up(p),
			p.GetLeases(), p.GetRestarts(), shortSum(p.GetSha256()), p.GetLastError())
	},
	noPlugins,
}

func showPlugins(out *Printer, plugins []*hostv1.Plugin) {
	pluginColumns.show(out, plugins)
	for _, p := range plugins {
		say := func(before, text string) {
			if text != "" {
				out.Say("plugin %q: %s%s", p.GetName(), before, text)
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

func pluginTables(p *hostv1.Plugin) (*Table, []section) {
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
	refused := NewTable("SHA256", "REASON")
	for _, sum := range slices.Sorted(maps.Keys(p.GetRefused())) {
		refused.Row(shortSum(sum), p.GetRefused()[sum])
	}
	swaps := p.GetSwaps()
	return t, []section{
		canarySection(p),
		{"Refused until they change, or until pannier plugin swap", refused},
		{"Swaps", swapColumns.table(swaps[max(0, len(swaps)-shownSwaps):])},
	}
}

// canary returns the part of the calls that a canary gets; empty: there is none.
func canary(c *hostv1.PluginCanary) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s gets %d%% of the calls", side(c.GetGeneration()), c.GetPercent())
}

// canarySection has the process that serves and the canary side by side, since the canary gets calls.
func canarySection(p *hostv1.Plugin) section {
	c := p.GetCanary()
	if c == nil {
		return section{"", NewTable()}
	}
	t := NewTable("PROCESS", "GENERATION", "VERSION", "SHA256", "PID", "CALLS", "PART", "FAILED", "RATE")
	row := func(what string, g *hostv1.PluginGeneration, pid, calls int64, part int32, failed int64) {
		t.Row(what, g.GetGeneration(), g.GetVersion(), shortSum(g.GetSha256()), pid, calls, fmt.Sprintf("%d%%", part), failed,
			rate(failed, calls))
	}
	serves := &hostv1.PluginGeneration{Generation: p.GetGeneration(), Version: p.GetVersion(), Sha256: p.GetSha256()}
	row("serves", serves, p.GetPid(), c.GetServingCalls(), 100-c.GetPercent(), c.GetServingFailedCalls())
	row("canary", c.GetGeneration(), c.GetPid(), c.GetCalls(), c.GetPercent(), c.GetFailedCalls())
	title := "Canary for %s, until pannier plugin promote or rollback %s"
	return section{fmt.Sprintf(title, age(c.GetStartedAt()), p.GetName()), t}
}

var swapColumns = columns[*hostv1.PluginSwap]{
	[]string{"AT", "FROM", "FAILED", "TO", "FAILED", "TOOK", "CALLS CARRIED", "RESULT"},
	func(t *Table, w *hostv1.PluginSwap) {
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
	},
	"the plugin has never been swapped",
}

// failedOf returns how many calls of a process failed until a swap; empty: it had answered none.
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
	if p.GetDegraded() != "" {
		return Cell{"degraded", Red}
	}
	return stateCell(p.GetState())
}

// number leaves out a zero.
func number(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// logFlags are the flags of commands that show a log.
func logFlags(f *pflag.FlagSet, recent *int32, follow *bool) {
	f.BoolVarP(follow, "follow", "f", false, "go on with new lines")
	f.Int32Var(recent, "recent", 100, "how many of the last lines to show first, at most 10000")
}

// showLogLine shows a message with a line of a log.
func (p *Printer) showLogLine(m interface{ GetLine() string }) error {
	return p.printLine(m, func() { p.Say("%s", logLine(m.GetLine())) })
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
