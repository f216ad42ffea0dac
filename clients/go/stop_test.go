package sidekeeper_test

import "os"

const stoppable = "-stoppable"

func runStoppable() { os.Exit(0) }
