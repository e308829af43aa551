package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// strangeKey is a key that no plugin has.
const strangeKey = "no_plugin_has_this_key"

var configChecks = []*Check{
	{
		ID:    "config.valid",
		Says:  "It accepts its configuration, and accepts it again while it runs.",
		Fix:   "See why it was refused. Give the test the configuration that the plugin needs, and let Configure be called at any time.",
		after: []string{"start.handshake", "info.kind"},
		run: up(func(ctx context.Context, r *run, c *checking, p *process) error {
			if err := p.configure(ctx, r.cfg.Config); err != nil {
				return fmt.Errorf("again: %w", err)
			}
			return nil
		}),
	},
	{
		ID:    "config.unknown-key",
		Says:  "Validate refuses an unknown key with InvalidArgument, and the message names the key.",
		Fix:   "Decode strictly (json.Decoder.DisallowUnknownFields) in Validate, and name the key in the error. If a misspelt key is ignored, an operator searches long for the reason.",
		after: configured,
		run: func(ctx context.Context, r *run, c *checking) error {
			err := r.refused(ctx, c, fmt.Sprintf(`{%q:1}`, strangeKey))
			if err == nil || !errors.Is(err, errRefused) {
				return err
			}
			if !strings.Contains(err.Error(), strangeKey) {
				return fmt.Errorf("the message does not name the key: %w", err)
			}
			return nil
		},
	},
	{
		ID:    "config.no-object",
		Says:  "Validate refuses anything but a JSON object with InvalidArgument.",
		Fix:   "Return the decoder's error from Validate. The SDK turns it into InvalidArgument.",
		after: configured,
		run: func(ctx context.Context, r *run, c *checking) error {
			for _, config := range []string{`[1]`, `{"half":`} {
				if err := r.refused(ctx, c, config); !errors.Is(err, errRefused) {
					return fmt.Errorf("%s: %w", config, err)
				}
			}
			return nil
		},
	},
	{
		ID:    "config.keeps-old",
		Says:  "A refused configuration changes nothing: the plugin answers as before.",
		Fix:   "In Configure, build the new configuration beside the old one, and replace the old one when the new one is complete. Validate stores nothing.",
		after: configured,
		run: up(func(ctx context.Context, r *run, c *checking, p *process) error {
			before := r.kind.asked(ctx, p.conn, r.asked())
			bad := fmt.Sprintf(`{%q:1}`, strangeKey)
			if p.configure(ctx, []byte(bad)) == nil {
				return skip("needs config.unknown-key to pass")
			}
			callCtx, cancel := context.WithTimeout(ctx, callTime)
			defer cancel()
			if _, err := p.api.Configure(callCtx, &pluginv1.ConfigureRequest{Config: []byte(bad)}); err == nil {
				return errors.New("it was accepted by Configure and refused by Validate")
			}
			return same("before", before, "after a refused configuration", r.kind.asked(ctx, p.conn, r.asked()))
		}),
	},
}

// errRefused is in the chain of a refusal with the right code.
var errRefused = errors.New("refused")

// refused validates a wrong configuration, in a separate process.
func (r *run) refused(ctx context.Context, c *checking, config string) error {
	p, err := r.up(ctx, c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, err = p.api.Validate(ctx, &pluginv1.ValidateRequest{Config: []byte(config)})
	switch status.Code(err) {
	case codes.OK:
		return errors.New("it is accepted by Validate")
	case codes.InvalidArgument:
		return fmt.Errorf("%w: %w", errRefused, err)
	default:
		return fmt.Errorf("it is refused with a code other than InvalidArgument: %w", err)
	}
}
