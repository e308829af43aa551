package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
)

// service implements PluginService for every kind.
type service struct {
	pluginv1.UnimplementedPluginServiceServer
	info   Info
	plugin Plugin
	life   *lifetime
}

func (s *service) Info(context.Context, *pluginv1.InfoRequest) (*pluginv1.InfoResponse, error) {
	info := &pluginv1.InfoResponse{Name: s.info.Name, Version: s.info.Version, Kind: s.plugin.Kind}
	if d, ok := As[Describer](s.plugin.Impl); ok {
		for _, k := range d.ConfigKeys() {
			info.ConfigKeys = append(info.ConfigKeys, &pluginv1.ConfigKey{
				Name: k.Name, Type: k.Type, Required: k.Required, DefaultValue: k.Default, Doc: k.Doc,
			})
		}
	}
	return info, nil
}

func (s *service) Validate(ctx context.Context, req *pluginv1.ValidateRequest) (*pluginv1.ValidateResponse, error) {
	if err := s.validate(ctx, req.GetConfig()); err != nil {
		return nil, err
	}
	return &pluginv1.ValidateResponse{}, nil
}

func (s *service) validate(ctx context.Context, config []byte) error {
	if v, ok := As[Validator](s.plugin.Impl); ok {
		if err := v.Validate(ctx, orEmpty(config)); err != nil {
			return orInvalid(err)
		}
		return nil
	}
	if _, ok := As[Configurer](s.plugin.Impl); ok {
		return nil
	}
	return refuseKeys(s.info.Name, orEmpty(config))
}

func (s *service) Configure(ctx context.Context, req *pluginv1.ConfigureRequest) (*pluginv1.ConfigureResponse, error) {
	c, ok := As[Configurer](s.plugin.Impl)
	if !ok {
		if err := refuseKeys(s.info.Name, orEmpty(req.GetConfig())); err != nil {
			return nil, err
		}
		return &pluginv1.ConfigureResponse{}, nil
	}
	if err := c.Configure(ctx, orEmpty(req.GetConfig())); err != nil {
		return nil, orInvalid(err)
	}
	return &pluginv1.ConfigureResponse{}, nil
}

func (s *service) Stop(context.Context, *pluginv1.StopRequest) (*pluginv1.StopResponse, error) {
	s.life.stop("the host asked for it")
	return &pluginv1.StopResponse{}, nil
}

// Attend sends health reports until the host disconnects.
func (s *service) Attend(req *pluginv1.AttendRequest,
	stream grpc.ServerStreamingServer[pluginv1.AttendResponse],
) error {
	release := s.life.attend(time.Duration(req.GetOrphanTimeoutMs()) * time.Millisecond)
	defer release()

	ctx := stream.Context()
	check := &healthCheck{kind: s.plugin.Health, impl: s.plugin.Impl}
	every := healthInterval
	if !check.asks() {
		every = healthRepeat
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last string
	var sent time.Time
	for {
		message := check.run(ctx)
		if sent.IsZero() || message != last || time.Since(sent)+every/2 >= healthRepeat {
			if err := stream.Send(&pluginv1.AttendResponse{Healthy: message == "", Message: message}); err != nil {
				return err
			}
			last, sent = message, time.Now()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func orEmpty(config []byte) []byte {
	if len(config) == 0 {
		return []byte("{}")
	}
	return config
}

// orInvalid gives InvalidArgument to an error that is no gRPC status.
func orInvalid(err error) error {
	if _, ok := status.FromError(err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return status.Error(codes.InvalidArgument, err.Error())
}

// refuseKeys validates the configuration of a plugin that has none: a key that nothing reads is a mistake of the
// operator's.
func refuseKeys(name string, config []byte) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(config, &keys); err != nil {
		return status.Errorf(codes.InvalidArgument, "the configuration is not a JSON object: %v", err)
	}
	if len(keys) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(keys))
	return status.Errorf(codes.InvalidArgument, "plugin %q has no configuration, got %s", name, strings.Join(names, ", "))
}

const (
	healthInterval = 5 * time.Second  // between two calls of a HealthReporter, and its time to answer
	healthRepeat   = 25 * time.Second // an unchanged health is sent again after this; plugin.proto promises 30 s
)

// healthCheck calls an implementation's Health. A call that ignores its context is reported, not waited for, and
// not repeated before it returns.
type healthCheck struct {
	kind    func() error // may be nil
	impl    any
	pending chan string // receives the result of a call that has not returned yet
}

// asks reports whether there is anything to ask.
func (c *healthCheck) asks() bool {
	_, ok := As[HealthReporter](c.impl)
	return ok || c.kind != nil
}

// run returns why the implementation is unhealthy, or "".
func (c *healthCheck) run(ctx context.Context) string {
	if c.kind != nil {
		if err := c.kind(); err != nil {
			return err.Error()
		}
	}
	h, ok := As[HealthReporter](c.impl)
	if !ok {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, healthInterval)
	defer cancel()
	if c.pending == nil {
		answer := make(chan string, 1)
		c.pending = answer
		go func() { answer <- askHealth(ctx, h) }()
	}
	select {
	case message := <-c.pending:
		c.pending = nil
		return message
	case <-ctx.Done():
		return "the health check did not answer in " + healthInterval.String()
	}
}

func askHealth(ctx context.Context, h HealthReporter) (message string) {
	defer func() {
		if v := recover(); v != nil {
			message = fmt.Sprintf("the health check panicked: %v", v)
		}
	}()
	err := h.Health(ctx)
	switch {
	case err == nil:
		return ""
	case err.Error() == "":
		return "unhealthy"
	default:
		return err.Error()
	}
}
