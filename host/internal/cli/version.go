package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show this program's version",
		Args: exactly(),
		RunE: a.do(func(context.Context, []string) error {
			v := struct {
				Version  string `json:"version"`
				Revision string `json:"revision,omitempty"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{Version: a.opts.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, setting := range info.Settings {
					if setting.Key == "vcs.revision" {
						v.Revision = setting.Value
					}
				}
			}
			if a.format == formatJSON {
				encoder := json.NewEncoder(a.out)
				encoder.SetIndent("", "  ")
				return encoder.Encode(v)
			}
			text := fmt.Sprintf("pannier %s (%s, %s)", v.Version, v.Go, v.Platform)
			if v.Revision != "" {
				text += " revision " + v.Revision[:min(12, len(v.Revision))]
			}
			_, err := fmt.Fprintln(a.out, text)
			return err
		}),
	}
}
