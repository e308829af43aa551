package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) driverLogs() *cobra.Command {
	req := &hostv1.DriverLogRequest{}
	cmd := &cobra.Command{
		Use: "logs ID", Short: "Show what the processes of a driver that the agent runs printed",
		Long: `Show what the processes of a driver that the agent runs printed, and with -follow new lines
as they come.`,
		Example: "pannier driver logs local -follow",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			req.Id = args[0]
			stream, err := client.Drivers.DriverLog(ctx, req)
			return each(ctx, stream, err, func(m *hostv1.DriverLogResponse) error { return a.showLogLine(m) })
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
		Example: "pannier driver history local",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.Drivers.GetDriver(ctx, &hostv1.GetDriverRequest{Id: args[0]})
			d := resp.GetDriver()
			swaps := append(d.GetSwaps(), d.GetController().GetSwaps()...)
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
				took := ""
				if s.GetTook() != nil {
					took = short(s.GetTook().AsDuration())
				}
				t.Row(moment(s.GetAt()), shortSum(s.GetFromSha256()), shortSum(s.GetToSha256()), took, result)
			}
			return printLines(a, swaps, err, func() { a.List(t, "the program of driver %q was not changed", args[0]) })
		}),
	}
}
