# Makes an empty virtual environment VENV and installs the one wheel of WHEELS there. pytest and numpy are
# those of PYTHON's environment.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${VENV})
file(GLOB wheel ${WHEELS}/ashlar-*.whl)
execute_process(COMMAND ${PYTHON} -m venv ${VENV} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${VENV}/bin/python3 -m pip install --quiet --disable-pip-version-check --no-input
    --no-index --no-deps ${wheel}
  COMMAND_ERROR_IS_FATAL ANY)
set(folder "import sysconfig; print(sysconfig.get_path('purelib'))")
execute_process(COMMAND ${PYTHON} -c "${folder}" OUTPUT_VARIABLE tools OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${VENV}/bin/python3 -c "${folder}" OUTPUT_VARIABLE packages
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
file(WRITE ${packages}/test_tools.pth "${tools}\n")
