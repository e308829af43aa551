package cli

import (
	"maps"
	"path"
	"strconv"
	"strings"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// variables are the environment that tells a program of its workload's devices, ports and
// secrets: where these are, never what is in them. secretsAt is where the program sees
// the workload's secrets directory.
func variables(w *hostv1.Workload, secretsAt string) map[string]string {
	env := map[string]string{}
	maps.Copy(env, w.GetReservation().GetEnv())
	for label, number := range w.GetPorts() {
		env[variable("PORT", label)] = strconv.Itoa(int(number))
	}
	if w.GetSecretsDir() == "" {
		return env
	}
	env["PANNIER_SECRETS_DIR"] = secretsAt
	seen := func(file string) string {
		return path.Join(secretsAt, strings.TrimPrefix(file, w.GetSecretsDir()))
	}
	var tokens []string
	for _, s := range w.GetServices() {
		if s.GetTokenFile() != "" {
			tokens = append(tokens, seen(s.GetTokenFile()))
			env[variable("TOKEN_FILE", s.GetName())] = seen(s.GetTokenFile())
		}
		if s.GetBootstrapFile() != "" {
			env[variable("BOOTSTRAP_FILE", s.GetName())] = seen(s.GetBootstrapFile())
		}
	}
	if len(tokens) == 1 {
		env["CONSUL_HTTP_TOKEN_FILE"] = tokens[0] // Consul's own tools and client libraries know it
	}
	return env
}

// variable is the name of a variable of one of its kind: PANNIER_PORT_HTTP.
func variable(kind, name string) string {
	return "PANNIER_" + kind + "_" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
}
