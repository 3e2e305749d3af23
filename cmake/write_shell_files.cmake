# Writes manual pages and completion scripts: cmake -DPROGRAM=ashlar -DFOLDER=shell -P write_shell_files.cmake
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER}/man1)
execute_process(COMMAND ${PROGRAM} man --write ${FOLDER}/man1 COMMAND_ERROR_IS_FATAL ANY)
foreach(shell bash zsh fish)
  if(shell STREQUAL "zsh")
    set(file _ashlar)
  else()
    set(file ashlar.${shell})
  endif()
  execute_process(COMMAND ${PROGRAM} completion ${shell} OUTPUT_FILE ${FOLDER}/${file}
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
