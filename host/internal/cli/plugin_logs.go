package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// maxLogLines is how many lines the agent gives at once.
const maxLogLines = 10_000

func (a *app) pluginLogs() *cobra.Command {
	var follow bool
	var recent int32
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "Show what a plugin's processes printed, and go on as they print",
		Long: `Show what a plugin's processes printed, the old one's and the new one's in a swap. Lines of
the SDK's logger are shown for people; with -o json each line is as it was printed, in
a message.`,
		Args: exactly("NAME"), ValidArgsFunction: a.completeIDs(pluginNames),
		RunE: a.do(func(ctx context.Context, args []string) error {
			if recent < 0 || recent > maxLogLines {
				return &usageError{err: fmt.Errorf("-recent: from 0 to %d", maxLogLines)}
			}
			client, err := a.api()
			if err != nil {
				return err
			}
			stream, err := client.Plugins.PluginLog(ctx, connect.NewRequest(&hostv1.PluginLogRequest{Name: args[0], Recent: recent, Follow: follow}))
			if err != nil {
				return hintPlugin(err)
			}
			defer stream.Close()
			for stream.Receive() {
				if err := a.showLogLine(stream.Msg()); err != nil {
					return err
				}
			}
			if ctx.Err() != nil {
				return nil // Interrupted, which is how following ends.
			}
			return hintPlugin(stream.Err())
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is printed from now on")
	cmd.Flags().Int32Var(&recent, "recent", 100, "how many of the last lines to show first, at most 10000")
	return cmd
}

func (a *app) showLogLine(m *hostv1.PluginLogResponse) error {
	if a.format == formatJSON {
		return a.printJSON(m, "")
	}
	_, err := fmt.Fprintln(a.out, printable(logLine(m.GetLine())))
	return err
}

// logLine is a line of the SDK's logger (hclog's JSON) for people; all else stays as it is.
func logLine(line string) string {
	var entry map[string]any
	numbers := json.NewDecoder(strings.NewReader(line))
	numbers.UseNumber() // as they stand there
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
