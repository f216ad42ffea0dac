// Command compose-check validates a Compose file as `docker compose config -q` does, with the same loader, and the
// Dockerfiles that the file builds from, with BuildKit's parser. It needs neither a Docker engine nor a plug-in.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: compose-check COMPOSE_FILE")
		os.Exit(2)
	}
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func check(file string) error {
	options, err := cli.NewProjectOptions([]string{file}, cli.WithOsEnv, cli.WithDotEnv)
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return err
	}
	var problems []error
	for name, service := range project.Services {
		if err := checkBuild(service.Build); err != nil {
			problems = append(problems, fmt.Errorf("services.%s.build: %w", name, err))
		}
	}
	return errors.Join(problems...)
}

func checkBuild(build *types.BuildConfig) error {
	if build == nil {
		return nil
	}
	path := build.Dockerfile
	if !filepath.IsAbs(path) {
		path = filepath.Join(build.Context, path)
	}
	text, err := os.Open(path)
	if err != nil {
		return err
	}
	defer text.Close()
	parsed, err := parser.Parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", build.Dockerfile, err)
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", build.Dockerfile, err)
	}
	if build.Target == "" {
		return nil
	}
	if _, found := instructions.HasStage(stages, build.Target); !found {
		return fmt.Errorf("%s: there is no stage %q", build.Dockerfile, build.Target)
	}
	return nil
}
