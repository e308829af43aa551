package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// hintDriver adds advice for a driver that does not exist. Drivers may miss something else.
func hintDriver(err error) error {
	if err == nil {
		return nil
	}
	if text := message(err); !strings.Contains(text, "is not on this node") && !strings.Contains(text, "is on no node") {
		return err
	}
	return hint(err, ExitNotFound, "pannier driver status lists the drivers")
}

func (a *App) driverLogs() *cobra.Command {
	req := &hostv1.DriverLogRequest{}
	cmd := &cobra.Command{
		Use: "logs ID", Short: "Show what the processes of a driver that the agent runs printed",
		Long: `Show what the processes of a driver that the agent runs printed, and with -follow new lines
as they come.`,
		Example:           "pannier driver logs local -follow",
		ValidArgsFunction: a.CompleteIDs(driverIDs),
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			req.Id = args[0]
			if err := checkRecent(req.Recent); err != nil {
				return err
			}
			stream, err := client.Drivers.DriverLog(ctx, req)
			if err != nil {
				return hintDriver(err)
			}
			return hintDriver(showLog(ctx, a, stream))
		}),
	}
	logFlags(cmd, &req.Recent, &req.Follow)
	cmd.Flags().StringVar(&req.Type, "type", "", "the process of this `TYPE`, where node and controller are apart")
	return cmd
}

func (a *App) driverHistory() *cobra.Command {
	return &cobra.Command{
		Use: "history ID", Short: "Show how the program of a driver that the agent runs was changed",
		Long: `Show the last 20 changes of the program of a driver that the agent runs, the newest last: how
long each took, whether calls waited, and why a program was refused, or it went back to the one
before. With -o json each is one line.`,
		Example:           "pannier driver history local",
		ValidArgsFunction: a.CompleteIDs(driverIDs),
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.Drivers.GetDriver(ctx, &hostv1.GetDriverRequest{Id: args[0]})
			if err != nil {
				return hintDriver(err)
			}
			d := resp.GetDriver()
			swaps := append(d.GetSwaps(), d.GetController().GetSwaps()...)
			if len(swaps) == 0 && a.format != formatJSON {
				a.Note("the program of driver %q was not changed", args[0])
				return nil
			}
			t := NewTable("AT", "FROM", "TO", "TOOK", "RESULT")
			for _, s := range swaps {
				result := Cell{"restarted: calls waited", Green}
				switch {
				case s.GetRefused():
					result = Cell{"refused next to the old process: " + s.GetWhy(), Yellow}
				case s.GetRollback():
					result = Cell{"rolled back: " + s.GetWhy(), Yellow}
				case s.GetOverlap():
					result = Cell{"swapped next to the old process", Green}
				}
				took := "-"
				if s.GetTook() != nil {
					took = short(s.GetTook().AsDuration())
				}
				t.Row(moment(s.GetAt()), shortSum(s.GetFromSha256()), shortSum(s.GetToSha256()), took, result)
			}
			return printLines(a, swaps, func() error { return a.Show(t) })
		}),
	}
}
